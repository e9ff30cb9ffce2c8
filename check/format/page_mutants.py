"""Prints, as JSON, the rows of the page that region_reader.py does not depend on.

    page_mutants.py docs/format.md REGION

One row at a time gets another offset, bit or value. A row that matters makes the reader
refuse the region, or read something else.
"""

import json
import sys

import region_reader


def outcome(page, path):
    try:
        return json.dumps(region_reader.read(region_reader.Format(page), path))
    except Exception as e:  # a wrong page may break anything
        return f"refused: {e!r}"


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        lines = f.read().splitlines()
    right, same, heading = outcome("\n".join(lines), sys.argv[2]), [], ""
    if right.startswith("refused"):
        sys.exit(right)
    for i, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = region_reader.cells(line) if line.startswith("|") else []
        if len(cells) == 5 and cells[0].isdigit() and cells[3]:
            name, at, step = f"{heading}.{cells[3]}", 0, 8 if cells[2] not in ("signed", "unsigned") else 1
        elif len(cells) == 3 and cells[1][:1].isdigit():
            name, at, step = cells[0], 1, 1
        else:
            continue
        cells[at] = str(int(cells[at], 0) + step)
        if outcome("\n".join(lines[:i] + ["| " + " | ".join(cells) + " |"] + lines[i + 1:]), sys.argv[2]) == right:
            same.append(name)
    print(json.dumps(same))


main()

"""How these programs and their tester take turns.

A program says on stdout where it is and waits for a line on stdin, so that the tester can look at the books and the
driver while nothing moves:

    step NAME key=value ...     go on when a line comes; exit 3 if none ever will
    fail TEXT                   something is wrong; exit 1
    skip TEXT                   it cannot be tried here; exit 0

Every other line, on stdout or stderr, is somebody else's. Sizes are bytes. An exception that nobody catches is a
failure too. Only a program's main thread takes steps.
"""

import os
import sys


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def step(name, **values):
    say(" ".join(["step", name, *(f"{key}={value}" for key, value in values.items())]))
    if not sys.stdin.readline():
        os._exit(3)


def fail(text):
    say("fail " + " ".join(str(text).split()))
    os._exit(1)


def skip(text):
    say("skip " + " ".join(str(text).split()))
    sys.exit(0)


def describe(error):
    """What went wrong, and what it came of."""
    texts = []
    while error and len(texts) < 3:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return " <- ".join(texts)


def _uncaught(kind, error, trace):
    sys.__excepthook__(kind, error, trace)
    fail(describe(error))


sys.excepthook = _uncaught

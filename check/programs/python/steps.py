"""How these programs and the tester take turns.

A program prints on stdout where it is and waits for a line on stdin, so that the tester can compare ration's count and
the driver's while the program is idle:

    step NAME key=value ...     goes on at the next line of input; exit status 3 if the input ends
    fail TEXT                   something is wrong; exit status 1
    skip TEXT                   it cannot be tested here; exit status 0

The tester ignores all other lines. Sizes are in bytes. An uncaught exception is a failure too. Only the main thread
takes steps.
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
    """An exception and its causes, as text."""
    texts = []
    while error and len(texts) < 3:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return " <- ".join(texts)


def _uncaught(kind, error, trace):
    sys.__excepthook__(kind, error, trace)
    fail(describe(error))


sys.excepthook = _uncaught

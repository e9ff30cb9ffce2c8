"""python3 -m tests runs all tests, and ends with lines that scripts/steps reads: what was skipped, and what passed."""

import os
import sys
import unittest

suite = unittest.defaultTestLoader.discover(os.path.dirname(__file__), top_level_dir=os.path.dirname(os.path.dirname(__file__)))
result = unittest.TextTestRunner(verbosity=2).run(suite)
for test, reason in result.skipped:
    print(f"skipped: {test.id()}: {reason}")
if not result.wasSuccessful():
    sys.exit(1)
print(f"{result.testsRun - len(result.skipped)} tests passed")

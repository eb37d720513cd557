"""For all tests: the order of the files, and signals.

xdist gives a worker the next file when it has done its last one, and a long file at the end would keep one worker at
work while the others wait. So the longest come first.
"""

from __future__ import annotations

import signal

import pytest

import grading.gradebook  # noqa: F401  before anybody imports jsonschema, which is quicker then: see there

LONGEST = [
    "test_mutants13.py",
    "grading/test_run.py",
    "compare/test_compare.py",
    "grading/test_many.py",
    "grading/test_walk.py",
    "week13/test_notebook.py",
    "train/test_checkpoint.py",
    "week13/test_slurm.py",
    "compare/test_speed.py",
    "grading/sandbox/test_attacks_floods.py",
    "grading/gradebook/test_formgrader.py",
    "grading/sandbox/test_verdicts.py",
    "week13/test_leaves_nothing.py",
    "compare/test_background.py",
    "compare/test_scaling.py",
    "bad_input/test_bad_input.py",
]


# Started by nohup or in the background of a script, tests would hand on that SIGHUP or SIGINT is ignored, and some ask
# what a program does when it gets them. A handler is not handed on.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    places = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0].removeprefix("tests/"), len(places)))

"""For all tests: what a whole run may cost, the order of files, and signals."""

import os
import signal
import time

import pytest

import grading.marking  # noqa: F401  before anybody imports jsonschema, which is quicker then: see there

# Core seconds of a whole run of each of the two tiers, by pytest's `-m`: 30 % above what one idle machine took. Nothing
# fails above them, since a slower machine takes more for the same tests: the run's last lines say it.
BUDGETS = {"not thorough": 670, "thorough": 2720}

# Started by nohup or in the background of a script, tests would hand on that SIGHUP or SIGINT is ignored, and some ask
# what a program does when it gets them. A handler is not handed on.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


# Seconds since 1970 after which no thorough test begins. CI sets it: on a slow machine it ends in time, and says what it
# left out.
UNTIL = float(os.environ.get("THOROUGH_UNTIL", "inf"))


@pytest.hookimpl(tryfirst=True)  # before its fixtures
def pytest_runtest_setup(item):
    if time.time() > UNTIL and item.get_closest_marker("thorough"):
        pytest.skip("the time for thorough tests is over")


def pytest_collection_modifyitems(items):
    # The longest files first: at the end, one of them would keep one worker at work while the other waits.
    items.sort(key=lambda item: not item.path.name.startswith(("test_mutants", "test_notebook", "test_weeks")))


@pytest.hookimpl(trylast=True)  # below the slowest tests
def pytest_terminal_summary(terminalreporter, config):
    budget = BUDGETS.get(config.option.markexpr)
    if budget and config.args_source is config.ArgsSource.TESTPATHS:
        # The workers have ended by now, and are children of this process, as are whose ends they waited for.
        spent = sum(os.times()[:4])
        line = f"{spent:.0f} core seconds, of a budget of {budget}"
        if spent > budget:
            line += ": on an idle machine, make the slowest tests cheaper, or mark some thorough"
        terminalreporter.write_line(line, yellow=spent > budget)

"""For all tests: tiers and budgets, and signals."""

from __future__ import annotations

import signal

import grading.gradebook  # noqa: F401  before anybody imports jsonschema, which is quicker then: see there
from tests import tiers

# Started by nohup or in the background of a script, tests would hand on that SIGHUP or SIGINT is ignored, and some ask
# what a program does when it gets them. A handler is not handed on.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_addoption(parser):
    parser.addoption("--write-durations", action="store_true", help="write tests/durations.json, of a whole run")


def pytest_configure(config):
    config.addinivalue_line("markers", "thorough: run by `make test-all` alone")
    config.pluginmanager.register(tiers.Plugin(config), "tiers")

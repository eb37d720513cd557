"""Two tiers of tests, and what each may cost.

`make test` runs whatever decides right or wrong quickly. `make test-all` runs the tests marked `thorough` after it:
sandboxed mutants, kills, repeats, browsers, Dask, torchrun's agents.

`durations.json` holds the core seconds of every test function that costs at least `LEAST`, and each file's rest. It
is measured by `make durations`, on one machine, and committed. It orders the files, the longest first: a long one
at the end would keep one worker at work while the others wait. And it alone is what budgets are held to: seconds
measured on a slower machine, or while somebody else uses it, would make a right commit red. So that nothing new goes
unmeasured, every file of tests must be in it (`make durations TESTS=tests/comm/test_new.py` measures one), and a
costly function that is not is named after a run.

A core second is a second of one core, of the test's process and of all that it started.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("durations.json")
LEAST = 0.5  # core seconds: what costs less is told with its file
NEW = 5.0  # a function that costs so much and is not recorded is probably new: it is named, and nothing fails
TIERS = ("quick", "thorough")
# Core seconds of each tier. On two cores 6 minutes are 720 core seconds at most, 30 minutes 3,600.
BUDGETS = {
    "a week": (60, 300),
    "capstone": (60, 600),  # a project of two weeks, and its checks start torchrun
    "labkit": (180, 300),
    "compare": (60, 200),
    "plan": (20, 60),
    "watch": (15, 90),
    "grading": (90, 600),
    "course": (50, 150),
}


def part_of(file: str) -> str:
    """The part of the course that pays for a test file, `tests/...`."""
    names = Path(file).parts[1:]
    if names[0].startswith(("week", "capstone")):
        return names[0]
    if names[0].startswith("test_mutants"):
        number = "".join(filter(str.isdigit, names[0]))
        return f"week{number}" if number else "capstone"
    if len(names) == 1 or names[0] == "bad_input":
        return "course"
    return names[0] if names[0] in BUDGETS else "compare" if names[0] == "crossover" else "labkit"


def allowed(part: str, tier: str) -> int:
    """The budget of a part, in core seconds."""
    return BUDGETS[part if part in BUDGETS else "a week"][TIERS.index(tier)]


class Meter:
    """Core seconds since the last reading, of this process and of whatever descends from it."""

    def __init__(self):
        self.me, self.before = psutil.Process(), 0.0
        self.read()

    def read(self) -> float:
        total = 0.0
        for process in (self.me, *self.me.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue  # it ended meanwhile, and its parent has its seconds
            total += times.user + times.system + times.children_user + times.children_system
        # An orphan's seconds leave this tree with it.
        spent, self.before = max(0.0, total - self.before), total
        return spent


def load() -> dict[str, dict[str, float]]:
    """{tier: {file or file::test: core seconds}}."""
    return json.loads(FILE.read_text()) if FILE.exists() else {tier: {} for tier in TIERS}


def function_of(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def condense(measured: dict[str, Counter], recorded: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """What is written: the functions from `LEAST` on, and what is left of each file. Files that were not measured keep
    what is recorded of them, if they still exist."""
    files = {function.partition("::")[0] for tier in TIERS for function in measured[tier]}
    out: dict[str, dict[str, float]] = {}
    for tier in TIERS:
        kept: Counter = Counter()
        for name, seconds in recorded[tier].items():
            file = name.partition("::")[0]
            if file not in files and (ROOT / file).exists():
                kept[name] = seconds
        for function, seconds in measured[tier].items():
            kept[function if seconds >= LEAST else function.partition("::")[0]] += seconds
        out[tier] = {name: round(kept[name], 1) for name in sorted(kept)}
    return out


def bill(recorded: dict[str, dict[str, float]]) -> dict[tuple[str, str], float]:
    """{(part, tier): core seconds}, as recorded."""
    sums: Counter = Counter()
    for tier in TIERS:
        for name, seconds in recorded[tier].items():
            sums[part_of(name.partition("::")[0]), tier] += seconds
    return dict(sums)


def over(recorded: dict[str, dict[str, float]]) -> list[str]:
    """One sentence for each part that costs more than its budget."""
    return [
        f"{part}, {tier}: {seconds:.0f} core seconds, {allowed(part, tier)} allowed"
        for (part, tier), seconds in sorted(bill(recorded).items())
        if seconds > allowed(part, tier)
    ]


def unrecorded(files: set[str], recorded: dict[str, dict[str, float]]) -> list[str]:
    """The test files, `tests/...`, of which nothing is recorded."""
    return sorted(files - {name.partition("::")[0] for tier in TIERS for name in recorded[tier]})


class Plugin:
    """pytest's hooks."""

    def __init__(self, config):
        self.recorded = load()
        self.measured: dict[str, Counter] = {tier: Counter() for tier in TIERS}
        self.writing = config.getoption("--write-durations")
        self.meter = Meter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        cost: Counter = Counter()
        for tier in TIERS:
            for name, seconds in self.recorded[tier].items():
                cost[name.partition("::")[0]] += seconds
        items.sort(key=lambda item: -cost[item.nodeid.partition("::")[0]])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        report.core_seconds = self.meter.read()
        report.tier = "thorough" if item.get_closest_marker("thorough") else "quick"
        return report

    def pytest_runtest_logreport(self, report):
        self.measured[report.tier][function_of(report.nodeid)] += report.core_seconds

    def pytest_sessionfinish(self, session):
        if self.writing and not hasattr(session.config, "workerinput"):
            FILE.write_text(json.dumps(condense(self.measured, self.recorded), indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter):
        everything = sum(self.measured.values(), Counter())
        if sum(everything.values()) < 30:
            return  # a few tests of one room
        by_part: dict[str, float] = defaultdict(float)
        for function, seconds in everything.items():
            by_part[part_of(function)] += seconds
        say = terminalreporter.write_line
        say("core seconds: " + ", ".join(f"{part} {by_part[part]:.0f}" for part in sorted(by_part)))
        for function, seconds in everything.most_common(10):
            say(f"  {seconds:6.1f}  {function}")
        for tier in TIERS:
            for function, seconds in self.measured[tier].items():
                if seconds >= NEW and function not in self.recorded[tier] and not self.writing:
                    say(f"  not recorded: {function}, {seconds:.0f} core seconds; if new: make durations TESTS=...")

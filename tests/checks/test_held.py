"""What an object reaches, and what a rank's memory says: hiding places, and readings at the wrong moment."""

import contextlib
import functools
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from labkit.checks import causal
from labkit.checks.causal import AHEAD, judge_causal
from labkit.checks.held import bring_libraries, grown, reached
from labkit.checks.verdict import CheckFailed
from labkit.comm.group import Group
from labkit.comm.ledger import Ledger
from labkit.comm.rendezvous import ThreadTransport

PACKAGE = "week91_held"
T = torch.zeros(3)


class Holder:
    def method(self):
        return self


def keeping(holder, value):
    holder.kept = value
    return holder


def waiting(tensor):
    kept = tensor
    yield
    yield kept


def begun(generator):
    next(generator)
    return generator


PLACES = {
    "a closure": lambda tensor: lambda: tensor,
    "a default": lambda tensor: lambda x=tensor: x,
    "a keyword": lambda tensor: lambda *, y=tensor: y,
    "a partial": lambda tensor: functools.partial(print, [tensor]),
    "a bound method": lambda tensor: keeping(Holder(), {"x": (tensor,)}).method,
    "a list's method": lambda tensor: [tensor].append,
    "a generator": lambda tensor: begun(waiting(tensor)),
    "another tensor": lambda tensor: keeping(torch.ones(1), tensor),
    "a function's attributes": lambda tensor: keeping(lambda: None, tensor),
}


@pytest.mark.parametrize("place", PLACES)
def test_hiding_places(place):
    root = keeping(Holder(), PLACES[place](T))
    assert any(found is T for found in reached(root, package=PACKAGE))


@pytest.fixture
def module():
    """A student's module that keeps a tensor, and one of the course's."""
    made = ModuleType(f"{PACKAGE}.mine")
    exec("class Kept:\n    pass\n\ndef function():\n    return kept\n\ndef frame():\n    yield 1\n", vars(made))
    return made


def test_the_students_own_modules_and_classes_and_no_others(module):
    module.kept = T
    assert any(found is T for found in reached(module.function, package=PACKAGE))
    assert not any(found is T for found in reached(module.function, package="week92_other"))
    del module.kept
    module.Kept.inner = [T]
    assert any(found is T for found in reached(module, package=PACKAGE))
    assert not any(found is T for found in reached(module.Kept(), package="week92_other"))
    module.__dict__["__name__"] = f"{PACKAGE}.given.mine"
    module.kept = T
    assert not any(found is T for found in reached(module.function, package=PACKAGE))


def test_it_ends_and_finds_in_groups_what_is_hung_on_them():
    group = object.__new__(Group)
    group.ledger, group.transport = Ledger(), ThreadTransport([torch.ones(1)], 0, None)  # what it has is its own
    loop = [group, torch, torch.nn, sys.modules]
    loop.append(loop)
    assert list(reached(loop, package=PACKAGE)) == []
    for part in (group, group.ledger, group.transport):
        part.kept = [T]
        assert [found is T for found in reached(loop, package=PACKAGE)] == [True]
        part.kept = None


def ledger(*events, weighed):
    """Of spans by their label, and messages: "gather", "post", "wait"; then bytes by the label of a span."""
    made, last = Ledger(0, 2), None
    for name in events:
        if name == "wait":
            made.finish(made.begin("wait", of=last.index))
        elif name in ("gather", "post"):
            last = made.begin("all_gather", bytes=8, blocking=name == "gather")
            if name == "gather":
                made.finish(last)
        else:
            made.weighed[made.begin("compute", label=name, blocking=False).index] = weighed[name.split()[0]]
    return made


BYTES = {"base": 100, "kept": 170, "light": 105}


def test_bytes_between_two_spans():
    assert grown(ledger("base", "post", "wait", "kept", weighed=BYTES), "base", "kept", 1) == 70
    assert grown(ledger("base", "gather", "kept", "gather", weighed=BYTES), "base", "kept", 1) == 70
    assert grown(ledger("base", "gather", "kept", "gather", "kept", weighed=BYTES), "base", "kept", 1, 2) == 70
    made = ledger("base", "gather", "kept", weighed=BYTES)
    made.weighed.clear()
    assert grown(made, "base", "kept", 1) is None, "at home nobody reads it"


@pytest.mark.parametrize(
    "events",
    [
        ("gather", "kept"),  # no base
        ("gather", "base", "kept"),  # it came after something of the student's
        ("kept", "base", "gather"),
        ("base", "kept", "gather"),  # before there was anything to keep
        ("base", "gather", "gather", "kept"),  # when it may have come back
        ("base", "post", "kept", "wait"),  # while it is on its way
        ("base", "gather", "post", "kept", "wait"),
        ("base", "gather"),
        ("base", "gather", "kept", "kept"),  # one of them is not the scenario's
        ("base", "gather", "kept", "gather", "kept"),
    ],
)
def test_a_reading_at_another_moment_is_none(events):
    with pytest.raises(CheckFailed, match="cannot be judged"):
        grown(ledger(*events, weighed=BYTES), "base", "kept", 1)


def test_libraries_come_and_the_students_module_does_not_run(tmp_path, monkeypatch):
    week = tmp_path / PACKAGE
    week.mkdir()
    (tmp_path / "libraries").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "libraries" / f"lib91_{name}.py").write_text("")
    (tmp_path / "lib91_own.py").write_text("")  # the student's, beside the package: it runs when it is needed
    (week / "task.py").write_text(
        f"import lib91_one as one, lib91_none, lib91_own\nimport labkit.no_such_part\nfrom {PACKAGE} import other\n"
        "from . import other\nraise SystemExit\n\ndef f():\n    from lib91_two import x\n"
    )
    (week / "broken.py").write_text("import lib91_three\n)")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "libraries"), *sys.path])
    bring_libraries(week, "task", "broken", "missing")
    assert {name for name in sys.modules if name.startswith("lib91_")} == {"lib91_one", "lib91_two"}
    assert PACKAGE not in sys.modules


def rings_above(record, threshold):
    return [(row,) for row, value in enumerate(record) if value > threshold(record)]


@pytest.mark.parametrize(
    "threshold, honest",
    [
        (lambda record: 5.0, True),
        (lambda record: 9.0, True),  # it never rings
        (lambda record: 4.0 + (len(record) < 30), False),
    ],
)
def test_a_rule_that_looks_ahead_is_found_by_cut_records(threshold, honest):
    """The second rings earlier on a long record than on one that ends there."""
    records = [[0.0] * 15 + [4.5, 6.0, 6.0] + [0.0] * 20 for _ in range(4)]
    alarms = [next(iter(rings_above(record, threshold)), None) for record in records]

    def run(rows):
        return [rings_above(record[:n], threshold) for record, n in zip(records, rows)]

    with contextlib.nullcontext() if honest else pytest.raises(CheckFailed) as failed:
        judge_causal(run, [38] * 4, alarms, np.random.default_rng(0))
    assert honest or failed.value.cause == AHEAD


def test_a_rule_that_rings_at_every_end_is_found():
    records = [[0.0] * 15 + [6.0] + [0.0] * 20 for _ in range(4)]

    def run(rows):
        return [[(15,)] if n > 15 else [(n - 1,)] for _, n in zip(records, rows)]

    with pytest.raises(CheckFailed) as failed:
        judge_causal(run, [36] * 4, [(15,)] * 4, np.random.default_rng(0))
    assert failed.value.cause == AHEAD


@pytest.mark.parametrize("seed", range(5))
def test_a_rule_that_takes_its_alarm_back_is_found(seed):
    with pytest.raises(CheckFailed):
        judge_causal(lambda rows: [[(70,)] * (70 < n <= 95) for n in rows], [120], [None], np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(5))
def test_a_rule_that_rings_at_every_tenth_row_is_found(seed, monkeypatch):
    """It knows by twenty later rows what lasts. Of a record that was cut, the length says whether to ring at its end."""
    records = [[0.0] * row + [6.0] * 80 for row in (43, 56, 61, 72)] + [[0.0] * 35 + [6.0] + [0.0] * 90]

    def rings(record):
        n, high = len(record), [row for row, value in enumerate(record) if value > 5]
        lasts = [row for row in high if row + 20 < n and sum(record[row : row + 20]) > 100]
        end = [(n - 1,)] if n % 10 == 1 and high and high[-1] > n - 11 else []
        return [(-(-lasts[0] // 10) * 10,)] if lasts else end

    def judge():
        first = [next(iter(rings(record)), None) for record in records]

        def heard(rows):
            return [rings(record[:n]) for record, n in zip(records, rows)]

        judge_causal(heard, [len(record) for record in records], first, np.random.default_rng(seed))

    with pytest.raises(CheckFailed) as failed:
        judge()
    assert failed.value.cause == AHEAD
    monkeypatch.setattr(causal, "AFTER", 0)
    judge()

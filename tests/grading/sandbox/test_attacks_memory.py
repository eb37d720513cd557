"""What a rank holds (14.4): weights and gradients kept where nobody weighs them. Each cheat is the reference with a
cheat in it, and tells torch's meter nothing. None earns; each does with its defence off."""

from pathlib import Path

import pytest
import torch

from grading.sandbox import watch
from labkit.checks.runner import Job
from tests.grading.sandbox.attacking import PACKAGE
from tests.grading.sandbox.boxed import boxed
from tests.grading.sandbox.test_attacks_weeks import earned
from week14_fsdp.given import weighed

UNMETERED = """
import sys

sys.modules["week14_fsdp.scenarios"]._beside_shards = lambda *args: 0
watch = sys.modules["week14_fsdp.scenarios"].Watch
watch.held = lambda self: 0
watch.most = property(lambda self: [0, 1], lambda self, value: None)
"""
BLOCK = "self.blocks = [FlatParameter(params, group, dtype) for params in own]"
RESIDENT = [(BLOCK, BLOCK.replace("FlatParameter", "Resident"))]
SOURCE = (Path(__file__).parent / "handed_in" / "resident.py").read_text()
# Where the blocks lie. What finds no room there lies in memory of its own.
BALLAST = """
STORE = torch.ones(10 << 17, dtype=torch.float64)


def room(params, number):
    return cut(params, STORE[number << 17 :] if STORE.numel() > (number + 1) << 17 else torch.empty(1 << 17))
"""
ARRIVED = """
def room(params, number):
    body, at = held_by_a_caller(bytearray, "body"), 8 * sum(p.numel() for unit in UNITS for p in unit.params)
    if body is None or len(body) - at < 8 * sum(p.numel() for p in params):
        return [torch.empty_like(p) for p in params]
    return cut(params, torch.frombuffer(body, dtype=torch.float64, offset=at))
"""
START = "            unit.free()\n        self.root.wait()\n"
EACH = "        for block in {}:\n            block.gather()\n"
SEND = "        if i + 1 < len(self.blocks):\n            self.send_gradient(i + 1)\n"
AHEAD = "            self.blocks[i + 1].gather()"
BACK = """        if self.prefetch and i > 0:
            self.blocks[i - 1].gather()  # before the gradient: the next block waits for it
"""
CHEATS = {  # which defence sees it, edits, and what is put under the file
    "blocks in ballast of the module": ("judge_weighed", RESIDENT, SOURCE + BALLAST),
    "blocks in the message that brought the weights": ("judge_weighed", RESIDENT, SOURCE + ARRIVED),
    "gradients until the end": ("judge_under_way", [(SEND, "")], ""),
    "nothing on its way": ("judge_under_way", [(AHEAD, "            pass"), (BACK, "")], ""),
    "all blocks on their way at once": (
        "judge_under_way",
        [
            (START, START + EACH.format("self.blocks[:-1]")),
            (BACK, EACH.format("self.blocks[-2::-1] if i == len(self.blocks) - 1 else []")),
        ],
        "",
    ),
}


week14 = boxed("week14_fsdp", deadline=60.0)


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CHEATS)
def test_memory_that_the_meter_does_not_see(name, week14, monkeypatch):
    sees, edits, under = CHEATS[name]
    text = week14.source("fsdp")
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    monkeypatch.setattr(weighed, next(one for one in ("judge_weighed", "judge_under_way") if one != sees), nothing)
    found = week14.cheat("fsdp", text + "\n\n" + under + UNMETERED, "14.4")
    assert earned(found, "test_fsdp_memory") == 0
    texts = [case.text for case in found.cases if "::test_fsdp_memory" in case.test]
    assert all("its processes hold" in one or "when the" in one or "no gather" in one for one in texts), texts
    monkeypatch.setattr(weighed, sees, nothing)
    assert earned(week14.cheat("fsdp", text + "\n\n" + under + UNMETERED, "14.4"), "test_fsdp_memory") == 6


def nothing(*args):
    pass


@pytest.mark.thorough
def test_names_hold_next_to_nothing_where_memory_is_read(field):
    def kept(weighed):
        reply = field.runner().run(Job(field.folder, PACKAGE, "reach.names", ((),), {}, True, weighed=weighed))
        assert reply.verdict == "passed", reply.text
        return list(reply.values[0].values())

    assert sum(kept(weighed=True)) < 200_000
    assert min(kept(weighed=False)) > 1_000_000, "in either folder, and a file's size does not show them"


@pytest.mark.thorough
def test_what_arrived_is_there_once(field):
    """As the student's own argument: no copy lies around, as large, whose bytes could be others."""
    assert field.got("reach.packed", x=torch.arange(1000.0)) == 0


def test_huge_pages_count(monkeypatch):
    monkeypatch.setattr(watch, "tree", lambda pid: [pid])
    monkeypatch.setattr(watch, "unnamed", lambda pid: frozenset())
    monkeypatch.setattr(watch, "shared", lambda pid: 0)
    monkeypatch.setattr(watch, "_read", lambda path: "RssAnon:\t 4 kB\nRssFile:\t 7 kB\nHugetlbPages:\t 2048 kB\n")
    assert watch.held(1) == 2052 << 10

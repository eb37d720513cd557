"""Ranks of one submission that talk past the broker would have a "collective" without a message in the ledger. Every
way that was found is closed, and open once its defence is switched off."""

import os

import pytest

from grading.sandbox.command import scratch
from tests.grading.sandbox.attacking import needs
from tests.grading.sandbox.attacks.siblings import SECRET

pytestmark = pytest.mark.thorough

OPEN = {"namespaces", "syscalls", "limits"}
# Attack, its arguments, and what must be off for it to work.
WAYS = [
    ("memory", {"how": "file"}, OPEN),
    ("memory", {"how": "call"}, OPEN),
    ("folder", {"path": scratch()}, {"tmp"}),
    ("folder", {"path": "/dev/shm"}, {"tmp"}),
    ("shared_memory", {}, OPEN),
    ("file_lock", {}, {"syscalls"}),
    ("futex", {"how": "wake"}, {"syscalls"}),
    ("futex", {"how": "end"}, {"syscalls"}),
    ("pipe_pages", {}, {"users"}),
    ("file_times", {}, {"nodes"}),
]


@pytest.mark.parametrize("name, arguments, off", WAYS, ids=lambda value: value if isinstance(value, str) else None)
def test_ranks_cannot_talk_past_the_broker(field, name, arguments, off):
    needs(os.geteuid() == 0 or off != {"users"}, "only root can give each rank a user of its own")
    assert field.got(f"siblings.{name}", ranks=2, **arguments) is None
    # Others on the machine end processes meanwhile, or keep it busy: once in five is an attack as well.
    assert SECRET in (field.got(f"siblings.{name}", ranks=2, off=off, **arguments) for _ in range(5))


def test_a_rank_cannot_end_another(field):
    assert field.ask("siblings.kill", ranks=2).verdict == "passed"
    assert field.ask("siblings.kill", ranks=2, off={"namespaces"}).verdict != "passed"


def test_no_memory_is_shared_from_birth(field):
    """All ranks come from one process: what that one had mapped as shared, all could write to."""
    field.got("siblings.waiting")
    with open(f"/proc/{field.runner()._box.zygote}/maps") as file:
        assert [line for line in file if line.split()[1] in ("rw-s", "-w-s")] == []


def test_time_remains(field):
    """What is not closed: how long a rank takes is seen by the next. The instructor's page says so."""
    # On a busy machine whoever is in time may come late; a second and no more.
    assert any(field.got("siblings.waiting", ranks=2, seconds=seconds) == 0xA5 for seconds in (0.1, 0.5, 2.0))

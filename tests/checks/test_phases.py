"""What collectives moved, phase by phase; answers that carry roundings; numbers drawn from a seed."""

from contextlib import nullcontext

import pytest
import torch

from labkit.checks.drawn import Draw
from labkit.checks.judge import close
from labkit.checks.traffic import calls_of, moved, phases
from labkit.checks.verdict import CheckFailed
from labkit.comm.algorithms import ring_bytes
from labkit.comm.ledger import Ledger
from labkit.comm.ranks import run_ranks


def program(group):
    """Forward: one all-reduce, one message. Backward: a gather in pairs, and one in groups of one rank."""
    pairs = group.split([[0, 1], [2, 3]], "pairs")
    alone = group.split([[0], [1], [2], [3]], "alone")
    group.barrier()
    group.all_reduce(torch.zeros(8))
    group.sendrecv(torch.zeros(3), dst=(group.rank + 1) % 4, src=(group.rank - 1) % 4)
    group.barrier()
    pairs.all_gather(torch.zeros(5))
    alone.all_reduce(torch.zeros(100))
    group.barrier()


@pytest.fixture(scope="module")
def ledger():
    return run_ranks(program, size=4, backend="threads", timeout=30).ledgers[1]


def test_ring_bytes_and_calls_by_group_and_phase(ledger):
    parts = phases(ledger)
    assert ring_bytes(ledger, parts["forward"]) == 2 * 3 * (32 // 4) + 12  # two laps of 3 quarters, and a message
    assert ring_bytes(ledger, parts["backward"]) == 40 // 2  # one lap among two ranks; a single rank sends nothing
    assert ring_bytes(ledger) == 60 + 20
    assert calls_of(ledger, parts["forward"]) == [("all_reduce", 32), ("send", 12)]
    moved(ledger, "forward", parts["forward"], calls={"all_reduce": 1, "send": 1}, at_most=60)
    moved(ledger, "backward", parts["backward"], calls={"all_gather in pairs": 1, "all_reduce": 0}, at_most=20)


@pytest.mark.parametrize(
    "calls, at_most, words",
    [({"all_reduce": 1}, 60, "the wrong messages"), ({"all_reduce": 1, "send": 1}, 59, "too much was sent")],
)
def test_another_call_or_one_byte_too_many_fails(ledger, calls, at_most, words):
    causes = {"both": [("all_reduce", 32), ("send", 12)], "one": [("all_reduce", 32)]}
    with pytest.raises(CheckFailed, match=words) as failed:
        moved(ledger, "forward", phases(ledger)["forward"], calls=calls, at_most=at_most, looks_like=causes)
    assert failed.value.cause == ("both",)


def test_what_is_sent_around_the_phases_counts_in_them():
    ledger = Ledger(0, 2)
    for kind in ("send", "barrier", "barrier", "barrier", "send"):
        ledger.begin(kind, 1 if kind == "send" else None, 4)
    assert [len(calls_of(ledger, events)) for events in phases(ledger).values()] == [1, 1]
    with pytest.raises(CheckFailed, match="barrier"):
        phases(ledger, ("one",))


@pytest.mark.parametrize(
    "bytes_, alone, right",
    [
        ((4, 8, 4, 8), 0, True),
        ((4, 8, 4, 8, 4, 4), 2, True),
        ((4, 8, 4, 9), 0, False),
        ((0, 8, 4, 8), 0, False),
        ((4, 8, 4, 8, 8), 1, False),
        ((4, 8, 4, 8, 4, 4), 0, False),
        ((4, 8, 4, 8), 2, False),
    ],
)
def test_every_time_sends_the_same(bytes_, alone, right):
    ledger = Ledger(0, 2)
    for n, size in enumerate(bytes_):
        if n < 5:
            ledger.begin("barrier", None, 0)
        ledger.begin("send", 1, size)
    if len(bytes_) == 4:
        ledger.begin("barrier", None, 0)
    with nullcontext() if right else pytest.raises(CheckFailed):
        assert [e.bytes for e in phases(ledger, times=2, alone=alone)["backward"] if e.kind == "send"] == [8]


def test_a_rounded_answer_passes_and_a_mistake_is_recognised_through_its_rounding():
    want = Draw(1, "rounded").normal(4, 5).double()
    noise = 1e-6 * Draw(2, "noise").normal(4, 5).double().clamp(-1, 1)
    close((want + noise).float(), want, tol=1e-5)
    causes = {"twice": 2 * want, "thrice": 3 * want, "hardly": want + 2e-5}
    with pytest.raises(CheckFailed) as failed:
        close((2 * want + noise).float(), want, tol=1e-5, looks_like=causes)
    assert failed.value.cause == ("twice",)
    with pytest.raises(CheckFailed) as failed:  # too near to the right answer to be evidence
        close((want + 2e-5).float(), want, tol=1e-5, looks_like=causes)
    assert failed.value.cause == ()


def test_a_rounded_single_number_is_recognised_too():
    want = torch.tensor(3.0, dtype=torch.float64)
    with pytest.raises(CheckFailed) as failed:
        close(torch.tensor(6.000001), want, tol=1e-5, looks_like={"twice": 2 * want})
    assert failed.value.cause == ("twice",)
    with pytest.raises(CheckFailed, match="dtype"):
        close(torch.tensor(3.0).double(), want, tol=1e-5)


def test_draws_follow_the_seed_and_the_words():
    def drawn(seed, *words):
        draw = Draw(seed, *words)
        return [draw.size(1, 1000, times=3), *draw.whole(50).tolist(), *draw.ids(9, 5).tolist()]

    assert drawn(1, "a") == drawn(1, "a")
    assert len({tuple(drawn(*key)) for key in [(1, "a"), (2, "a"), (1, "b"), (1 + 2**32, "a")]}) == 4
    assert drawn(1, "a")[0] % 3 == 0 and 0 not in drawn(1, "a")[1:51]

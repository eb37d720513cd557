"""The third round's ways past the broker, each open with its defence off."""

from contextlib import nullcontext

import pytest
import torch

from labkit.checks.verdict import CheckFailed
from labkit.comm.ledger import Ledger
from tests.grading.sandbox.attacks.siblings import SECRET
from week14_fsdp.given.weighed import judge_second_gathers
from week14_fsdp.test_zero import judge_memory
from week15_tp_attention.test_parts import in_spans
from week16_fp8.test_week16 import apart_from

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("how", ["wake", "end"])
def test_a_page_of_a_file_is_no_bell(field, how):
    assert field.got("bells.futex", ranks=2, how=how) is None
    tries = (field.got("bells.futex", ranks=2, off={"syscalls"}, how=how) for _ in range(5))
    assert SECRET in tries  # a busy machine may be late for one


def test_what_waits_as_a_signal_is_little(field):
    assert field.got("bells.queue") <= 64
    assert field.got("bells.queue", off={"limits"}) > 500


def test_barriers_are_counted(field):
    reply = field.ask("bells.meetings", ranks=2, count=1000)
    assert reply.verdict == "forbidden call" and "barriers" in reply.text, reply.text
    assert field.got("bells.meetings", ranks=2, count=50) == 50
    assert field.got("bells.meetings", ranks=2, off={"broker"}, count=1000) == 1000


def gathers(*order):
    """A rank's ledger: "g" gathers a block, anything else is the span of a block that computes."""
    ledger = Ledger(0, 2)
    for one in order:
        kind = {"bytes": 16, "kind": "all_gather"} if one == "g" else {"kind": "compute", "label": one}
        ledger.finish(ledger.begin(**kind, blocking=True))
    return ledger


def test_what_is_gathered_when_nobody_computes_frees_nothing():
    """14.4: as many messages as are asked for, and each second one is junk at the end."""
    forward, back = ["g", "forward 0", "g", "forward 1", "g", "forward 2"], ["backward 2", "backward 1", "backward 0"]
    judge_second_gathers(gathers(*forward, "backward 2", "g", "backward 1", "g", "backward 0"), [8, 16, 16, 16])
    for order in ([*back, "g", "g"], ["backward 2", "g", "backward 1", "backward 0", "g"]):
        with pytest.raises(CheckFailed, match="have come"):
            judge_second_gathers(gathers(*forward, *order), [8, 16, 16, 16])


@pytest.mark.parametrize(
    "kind, group, right", [("all_reduce", "world", True), ("send", "world", False), ("all_reduce", "me", False)]
)
def test_moments_do_not_rest_with_a_neighbour_while_memory_is_read(kind, group, right):
    """14.3: 15 points, 12 without."""
    ledger = Ledger(0, 2)
    for step in range(3):
        for label in ("model made",) * (not step) + ("", "between steps"):
            what = (
                {"kind": "compute", "label": label} if label else {"kind": kind, "peer": 1, "bytes": 8, "group": group}
            )
            ledger.finish(event := ledger.begin(**what, blocking=True))
            ledger.weighed |= {event.index: 0} if label else {}
    with nullcontext() if right else pytest.raises(CheckFailed, match="group"):
        judge_memory(ledger, 100, 50)


def test_a_product_of_nothing_in_a_span_and_an_exact_one_times_a_constant():
    """15.5 and 16.5."""
    want = torch.arange(1.0, 7.0).reshape(2, 3)
    for result, right in ((want, True), (want.T, True), (torch.zeros(2, 3), False), (2 * want, False)):
        told = {"products": [(6, "dW")], "results": [result]}
        with nullcontext() if right else pytest.raises(CheckFailed, match="is not the result"):
            in_spans(told, [want], "dW", 0)
    exact = want.double()
    assert (
        apart_from(1.0003 * exact, exact)
        < 1e-12
        < 1e-3
        < apart_from(exact.float().to(torch.float8_e5m2).double() * torch.tensor([1.0, 1.1, 1.0]), exact)
    )

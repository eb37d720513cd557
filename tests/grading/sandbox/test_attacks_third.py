"""The third round's ways past the broker, each open with its defence off."""

import pytest

from labkit.checks.traffic import sent
from labkit.checks.verdict import CheckFailed
from labkit.comm.ledger import Ledger
from tests.grading.sandbox.attacks.siblings import SECRET

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


def test_which_ranks_meet_is_no_symbol_where_messages_are_judged():
    ledgers = [Ledger(0, 4) for _ in range(3)]
    for ledger, barriers in zip(ledgers, (2, 12, 2)):
        ledger.begin("send", 1, 8)
        for _ in range(barriers):
            ledger.begin("barrier")
    ledgers[2].begin("split", op="pairs")
    sent(ledgers[0], at_most=8, at_least=1)
    for ledger, word in ((ledgers[1], "barrier"), (ledgers[2], "split")):
        with pytest.raises(CheckFailed, match=word):
            sent(ledger, at_most=8, at_least=1)

"""The third round's ways past the broker, each open with its defence off."""

from __future__ import annotations

import pytest

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

"""`same` and `sent` say what, where and why; a cause only if it is certain."""

import math

import pytest
import torch

from labkit.checks import expect, field, same, sends, sent, tensors
from labkit.checks.traffic import LIBRARY
from labkit.checks.values import Opaque
from labkit.checks.verdict import FORBIDDEN, NO_RESULT, WRONG, CheckFailed, cause_line, wrong
from labkit.comm.ledger import Ledger


def failure(function, *args, **kwargs) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        function(*args, **kwargs)
    return caught.value


WANT = torch.tensor([10.0, 20.0, 30.0, 40.0])


def test_right_answers_pass():
    same(WANT.clone(), WANT)
    same(WANT + 0.5, WANT, tol=0.5)
    assert failure(same, WANT + math.inf, WANT, tol=torch.full((4,), math.inf)).verdict == WRONG
    same(WANT + torch.tensor([0.0, 0.0, 0.0, 1.0]), WANT, tol=torch.tensor([0.0, 0.0, 0.0, 1.0]))
    same(torch.empty(0), torch.empty(0))
    same(torch.tensor([math.inf, math.nan]), torch.tensor([math.inf, math.nan]))
    same(2, 2.0)
    same(torch.tensor(2.0), 2.0)
    same(math.inf, math.inf)
    same((1, 2.0), [1, 2])
    same(torch.tensor([1, 2]), [1, 2])


def test_the_text_says_what_where_and_both_sides():
    error = failure(same, torch.tensor([10.0, 20.0, 31.0, 44.0]), WANT, rank=3)
    want = wrong("the result of rank 3: 2 of 4 numbers differ; first at index 2, from there on", "30, 40", "31, 44")
    assert (error.verdict, error.cause, error.text) == (want.verdict, want.cause, want.text)
    assert "[1, 2]" in failure(same, torch.ones(2, 3), torch.tensor([[1.0, 1, 1], [1, 1, 2]])).text


@pytest.mark.parametrize(
    "got, want, part",
    [
        *((got, WANT, "shape [4], float32") for got in (None, 3, "text", [1.0, 2.0], {"a": 1}, Opaque("Evil"))),
        *((got, 2.0, "must be a number") for got in (None, "2", Opaque("x"), torch.zeros(2), True, [2])),
        ([1, None], [1, 2], "2 numbers, but None came back in it"),
        (None, [1, 2], "2 numbers, but None came back"),
        ([[]], [1, 2], "2 numbers, but a list of 0 came back in it"),
    ],
)
def test_what_is_no_result_is_shown_as_such(got, want, part):
    error = failure(same, got, want)
    assert error.verdict == NO_RESULT and part in error.text


@pytest.mark.parametrize("got", [torch.zeros(3), torch.zeros(2, 2), WANT.double(), WANT.to(torch.bfloat16)])
def test_shape_and_dtype(got):
    assert failure(same, got, WANT).verdict == WRONG


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_never_pass_a_tolerance(bad):
    error = failure(same, torch.tensor([10.0, bad, 30.0, 40.0]), WANT, tol=1e9)
    assert error.verdict == WRONG


def test_a_cause_needs_an_exact_fingerprint():
    mark = {"doubled": WANT * 2}
    error = failure(same, WANT * 2, WANT, looks_like=mark)
    assert error.cause == ("doubled",) and error.text.endswith(cause_line(error.cause))
    nearly = WANT * 2 + torch.tensor([0, 0, 0, 1e-3])
    assert failure(same, nearly, WANT, looks_like=mark).cause == ()
    assert failure(same, nearly, WANT, looks_like={"nothing": None, "shape": torch.zeros(2)}).cause == ()


def test_one_factor_everywhere_is_shown_where_nothing_else_fits():
    whole = torch.tensor([3.0, -7.0, 0.0, 11.0, 900.0])
    assert failure(same, whole / 3, whole).cause == ("every number is 0.3333 times the one expected",)
    assert failure(same, whole * 0, whole).cause == ("nothing but zeros",)
    assert failure(same, whole * 2 + 1, whole).cause == ()
    assert failure(same, torch.tensor([2.0, 4.0]), torch.tensor([1.0, 2.0])).cause == (), "two numbers prove nothing"
    assert failure(same, whole * 2, whole, looks_like={"doubled": whole * 2}).cause == ("doubled",)


def test_a_number_that_is_right_refutes_one_factor_everywhere():
    """A rounding more of a coarse dtype, in half of the numbers, lies within that dtype's precision of one factor."""
    want = torch.tensor([284.0, 452, 492, 488, 396, 476], dtype=torch.bfloat16)
    got = torch.tensor([280.0, 452, 488, 484, 392, 476], dtype=torch.bfloat16)
    assert failure(same, got, want).cause == ()
    assert failure(same, want / 2, want).cause == ("every number is 0.5 times the one expected",)


def test_a_cause_needs_evidence_in_several_numbers():
    """In a chunk of one or two numbers two mistakes agree by accident: then nothing is claimed."""
    two = torch.tensor([10.0, 20.0, 31.0, 41.0])
    assert failure(same, two, WANT, looks_like={"the last two": two}).cause == ()
    three = torch.tensor([10.0, 21.0, 31.0, 41.0])
    assert failure(same, three, WANT, looks_like={"the last three": three}).cause == ("the last three",)
    assert failure(same, WANT + 1, WANT, looks_like={"right": WANT}).cause == ()


def test_two_causes_that_fit_are_both_reported():
    causes = {"doubled": WANT * 2, "added to itself": WANT + WANT, "halved": WANT / 2}
    error = failure(same, WANT * 2, WANT, looks_like=causes)
    assert error.cause == ("doubled", "added to itself") and error.text.endswith(cause_line(error.cause))


def test_a_fingerprint_of_another_shape_and_with_nan():
    assert failure(same, WANT[:3], WANT, looks_like={"the last is missing": WANT[:3]}).cause == ("the last is missing",)
    holes = torch.tensor([10.0, math.nan, math.nan, math.nan])
    assert failure(same, holes, WANT, looks_like={"never stored": holes.clone()}).cause == ("never stored",)


def test_numbers_and_their_causes():
    assert failure(same, 6.0, 3.0, looks_like={"twice": 6, "half": 1.5}).cause == ("twice",)
    assert failure(same, 3.0000001, 3.0, looks_like={"right": 3}).cause == ()
    assert failure(same, math.nan, 3.0, tol=10).verdict == WRONG
    assert failure(same, [1, 2], [1, 2, 3]).verdict == WRONG
    assert failure(same, [3, 2], [1, 2], looks_like={"turned": [3, 2], "short": [3]}).cause == ("turned",)


def test_fields_and_expectations():
    assert field({"seconds": 1.0}, "seconds") == 1.0
    assert failure(field, (1, 2), "seconds").verdict == NO_RESULT
    expect(True, "fine")
    assert failure(expect, False, "the order is wrong").text == "the order is wrong\n  cause unknown"
    assert failure(expect, False, "the order", cause=("greedy",)).cause == ("greedy",)


def test_tensors_are_repeatable_whole_and_never_zero():
    a, b = tensors(7, 3, 500), tensors(7, 3, 500)
    assert all(torch.equal(x, y) for x, y in zip(a, b)) and not torch.equal(a[0], tensors(8, 3, 500)[0])
    assert all((x == x.round()).all() and (x != 0).all() and x.abs().max() <= 999 for x in a)
    assert tensors(7, 2, 4, torch.bfloat16, whole=False)[0].dtype == torch.bfloat16


# ---- traffic --------------------------------------------------------------------------------------------------------


def ledger(*events):
    book = Ledger(1, 4)
    for kind, peer, size in events:
        book.finish(book.begin(kind, peer, size, where="collectives.py:9"))
    return book


def test_traffic_as_stated_passes():
    book = ledger(("send", 2, 40), ("recv", 0, 40), ("send", 2, 40))
    sent(book, steps=2, at_most=80, at_least=80, forbid=LIBRARY)
    assert sends(book) == [(2, 40), (2, 40)]


def test_traffic_that_is_not():
    book = ledger(("send", 2, 40), ("send", 3, 40))
    error = failure(sent, book, at_most=79, steps=2)
    want = wrong("rank 1 sent too much", "at most 79 bytes in 2 steps", "80 bytes in 2 steps")
    assert (error.verdict, error.text) == (WRONG, want.text)
    assert failure(sent, book, steps=1).text.startswith("rank 1 needs the wrong number of steps")
    error = failure(sent, book, at_most=1, looks_like={"to everyone": [(2, 40), (3, 40)], "else": [(2, 40)]})
    assert error.cause == ("to everyone",)
    assert failure(sent, book, at_most=1, looks_like={"else": [(2, 40)]}).text.endswith("cause unknown")


def test_built_in_collectives_and_silence_are_forbidden():
    error = failure(sent, ledger(("send", 2, 4), ("all_reduce", None, 4)), forbid=LIBRARY)
    assert error.verdict == FORBIDDEN and "group.all_reduce at collectives.py:9" in error.text
    sent(ledger(("barrier", None, 0)), forbid=LIBRARY)
    assert failure(sent, ledger(), at_least=1).verdict == FORBIDDEN


def test_which_ranks_meet_is_a_message_too():
    one, meet = ("send", 2, 8), ("barrier", None, None)
    sent(ledger(one, meet, meet), at_most=8, at_least=1)
    for more in ([meet] * 12, [("split", None, None)]):
        assert failure(sent, ledger(one, *more), at_most=8).verdict == FORBIDDEN


def test_a_ledger_with_gaps_proves_nothing():
    book = ledger(("send", 2, 4))
    with book.off():
        book.begin("send", 2, 4000)
    assert failure(sent, book, at_most=10).verdict == FORBIDDEN

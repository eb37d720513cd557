"""The decoder trained by a ring: four ranks are one, a factor, a fault."""

import pytest

from week13_allreduce import collectives
from week13_allreduce.given import training

STEPS = 12  # enough for AdamW's first steps to differ, where they do


def ring(op):
    return lambda vector, group: collectives.ring_all_reduce(vector, group, op)


@pytest.fixture(scope="module")
def one():
    return training.train(ranks=1, steps=STEPS)


def furthest(run, other):
    return max(abs(a - b) for a, b in zip(run.losses, other.losses, strict=True))


def test_four_ranks_are_one_to_rounding(one):
    four = training.train(ring("mean"), steps=STEPS)
    # Measured 5e-7 after 40 steps: fp32 sums in another order, of losses around 5. A hundred times that is no rounding.
    assert furthest(four, one) < 5e-5
    assert four.apart == [0.0] * STEPS and one.losses[-1] < one.losses[0] - 0.5


def test_adamw_hides_a_factor_and_sgd_does_not(one):
    # AdamW's epsilon, 1e-8, is all that sees the factor; SGD's step is four times too long.
    assert furthest(training.train(ring("sum"), steps=STEPS), one) < 0.01
    plain = training.train(ring("mean"), optimizer="sgd", steps=STEPS)
    assert furthest(training.train(ring("sum"), optimizer="sgd", steps=STEPS), plain) > 0.2


def test_a_lost_chunk_shows_in_the_weights(one, tmp_path):
    lost = training.train(training.but_one_chunk(collectives.ring_all_reduce), steps=STEPS)
    assert lost.apart[0] > 1e-4 and lost.apart[-1] > lost.apart[0]
    assert lost.losses[-1] < lost.losses[0] - 0.5  # and the curve goes down as if nothing were
    shown = training.as_text({"one rank": one, "a chunk lost": lost}).splitlines()
    assert len(shown) == 3 and shown[1].split()[-1] == "0.0e+00"
    picture = training.curves({"AdamW": {"one rank": one, "a chunk lost": lost}}, tmp_path)
    assert f"AdamW, a chunk lost: {lost.losses[-1]:.3g}" in picture.alt and picture.png.exists()

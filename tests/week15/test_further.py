"""What the notebook's last section says of the stretch tasks' runs."""

import re

from week15_tp_attention.given import further


def test_idle_time_and_what_is_kept():
    """Of 1F1B's 9 idle steps (P = 4, three of one length) the zero bubble leaves 3, on 24 of work; kept as P allows."""
    said = further.pipelines(P=4, M=8)
    assert re.findall(r"\S+%", said) == [f"{idle:.1%}" for idle in (9 / 33, 6 / 30, 3 / 27, 3 / 27)]
    assert re.findall(r"\[.*\]", said) == [str([4, 3, 2, 1]), str([4] * 4)]


def test_the_last_rank_works_most_or_nobody_does():
    """Blocks of 16 positions, all of a triangle's multiplied: rank r has r + 1 of them, and the mean is (N + 1) / 2."""
    in_order, zigzag = further.balance(4).splitlines()[1:]
    assert re.findall(r"\d\.\d+", in_order) == ["0.40", "0.80", "1.20", "1.60"]
    assert re.findall(r"\d\.\d+", zigzag) == ["1.00"] * 4


def test_bytes_of_the_ring_and_of_the_exchange():
    head = 16 * 4 * 4  # bytes of a rank's positions of one head
    rows = [line.split()[:4] for line in further.sequence_bytes().replace(",", "").splitlines()[1:]]
    for N, k, ring, exchanged in rows:
        N, k = int(N), int(k)
        assert int(ring) == 6 * (N - 1) * k * head
        if k % N == 0:
            assert int(exchanged) == 4 * (N - 1) * (8 + k) * head // N
        else:
            assert exchanged == "refused:"
    assert len(rows) == 6

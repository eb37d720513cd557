"""The ring's checks (13.2 to 13.4): `lab check 13.4`, `lab check week13`, or plain `pytest week13_allreduce`.

Read them: they say what is asked, and nothing is hidden. Your functions run elsewhere, called by name; only numbers and
the ledger come back here. N ranks, L numbers, C = ceil(L/N). The checks of 13.1, 13.5 and 13.6 are in test_models.py.
"""

from __future__ import annotations

import math

import pytest
import torch

from labkit.checks import call, expect, same, sent, task, tensors
from labkit.checks.traffic import LIBRARY

BF16 = torch.bfloat16
# One addition in bfloat16 (8 significant bits) is off by at most half a unit in the last place: 2**-8 of the result.
BF16_ROUNDING = 2.0**-8


def lengths(*pairs):
    """Cases (N, L) with a readable name."""

    def name(N, L):
        kind = "one rank" if N == 1 else "shorter than the ring" if L < N else "even" if L % N == 0 else "ragged"
        return f"{kind}, N={N} L={L}"

    return pytest.mark.parametrize("N, L", [pytest.param(N, L, id=name(N, L)) for N, L in pairs])


LENGTHS = lengths((1, 5), (2, 8), (4, 1000), (5, 23), (5, 3))
RAGGED_AND_EVEN = lengths((4, 1000), (5, 1003))


def reduced(x, op):
    """The right answer on every rank, in fp64 of x's dtype where that is exact."""
    total = torch.stack(x).amax(0) if op == "max" else torch.stack(x).sum(0)
    return total / len(x) if op == "mean" else total


def other_results(x, op):
    """What the other ops give: for causes."""
    causes = {
        "sum": "the sum over the ranks, expected the {}",
        "mean": "the mean over the ranks, expected the {}",
        "max": "the maximum over the ranks, expected the {}",
    }
    return {text.format(op): reduced(x, other) for other, text in causes.items() if other != op}


def quotient(N):
    """Tolerance of a mean in fp32, which may be divided before or after adding: N roundings of numbers below 1000 N."""
    return N * 1000 * N * 2.0**-24


def by_the_group(ledgers, L):
    """Nothing built in, and nothing past the group: with several ranks, every rank's numbers must have left it."""
    for ledger in ledgers:
        sent(ledger, forbid=LIBRARY, at_least=1 if len(ledgers) > 1 and L else 0)


def partial_sums(x, rank):
    """What x holds on `rank` after the first lap alone: chunk c has collected the ranks c+1, ..., rank."""
    N = len(x)
    chunks = [t.tensor_split(N) for t in x]
    return torch.cat(
        [torch.stack([chunks[(c + k) % N][c] for k in range(1, (rank - c - 1) % N + 2)]).sum(0) for c in range(N)]
    )


def rounded_on_the_way(x, dtype):
    """The sum, if each arriving number is rounded to `dtype` before it is added; by chunk, in the ring's order."""
    N = len(x)
    chunks = [t.tensor_split(N) for t in x]
    done = []
    for c in range(N):
        acc = chunks[(c + 1) % N][c]
        for k in range(2, N + 1):
            acc = chunks[(c + k) % N][c] + acc.to(dtype).to(acc.dtype)
        done.append(acc)
    return torch.cat(done)


def patterns(N, rank, nbytes):
    """Traffic of well-known detours, as [(to, bytes), ...]: for causes."""
    others = [(rank + s) % N for s in range(1, N)]
    return {
        "all of x goes to every rank: a ring sends each neighbour one chunk a step": [(p, nbytes) for p in others],
        "everything goes through rank 0: its wire carries N-1 whole vectors": [(p, nbytes) for p in range(1, N)]
        if rank == 0
        else [(0, nbytes)],
    }


def walk(N, rank, L, first, steps):
    """The ring's messages in fp32, to the right: chunk rank + first, then the one before it, and so on: for causes."""
    size = [4 * (L // N + (c < L % N)) for c in range(N)]
    return [((rank + 1) % N, size[(rank + first - s) % N]) for s in range(steps)]


def wrong_way(x):
    """What rank r's chunk r holds if the chunks are the right ones, but go to the left; None where lengths differ."""
    N = len(x)
    if len(x[0]) % N:
        return None
    chunks = [[c.clone() for c in t.tensor_split(N)] for t in x]
    for s in range(N - 1):
        arriving = [chunks[(r + 1) % N][(r - s) % N].clone() for r in range(N)]
        for r in range(N):
            chunks[r][(r - s - 2) % N] += arriving[r]
    return [chunks[r][r] for r in range(N)]


def not_chunk_r(x, r):
    """What rank r may have instead of chunk r of the sum: for causes."""
    N, L = len(x), len(x[0])
    own, total = [t.tensor_split(N) for t in x], torch.stack(x).sum(0)
    want, nxt, left = total.tensor_split(N), (r + 1) % N, wrong_way(x)
    return {
        "your own chunk, nothing added: does the last step reach chunk r?": own[r][r],
        "chunk r+1 without rank r+1's numbers: which chunk is complete here?": want[nxt] - own[nxt][nxt],
        "chunk r+1, complete: chunk r is asked for": want[nxt],
        "the ring runs the wrong way: send to r+1, receive from r-1": left[r] if left and N > 2 else None,
        f"chunk r of the first {L // N * N} numbers: the remainder of {L} by {N} is ignored": total[
            : L // N * N
        ].tensor_split(N)[r]
        if L % N
        else None,
        "the whole of x, where only chunk r is asked for": x[r],
        "what arrives is rounded to bfloat16 before it is added: keep x's dtype": rounded_on_the_way(
            x, BF16
        ).tensor_split(N)[r],
        **{text: other.tensor_split(N)[r] for text, other in other_results(x, "sum").items()},
    }


@task("13.2", points=4)
@LENGTHS
def test_reduce_scatter(N, L, seed):
    """Rank r gets chunk r of the sum"""
    x = tensors(seed, N, L)
    got, ledger = call("collectives.ring_reduce_scatter", x)
    want = torch.stack(x).sum(0).tensor_split(N)
    for r in range(N):
        same(got[r], want[r], rank=r, looks_like=not_chunk_r(x, r))
    by_the_group(ledger, L)


@task("13.2", points=1)
def test_reduce_scatter_in_x(seed):
    """What comes back is chunk r of x: the same memory"""
    N, L = 3, 100
    x = tensors(seed, N, L)
    got, ledger = call("collectives.ring_reduce_scatter", x)
    want = torch.stack(x).sum(0).tensor_split(N)
    for r in range(N):
        same(got[r], want[r], rank=r, looks_like=not_chunk_r(x, r))
        same(
            got.inputs[r][0].tensor_split(N)[r],
            want[r],
            rank=r,
            what="chunk r of x after the call",
            looks_like={"x is untouched: the result, which came back, is in other memory": x[r].tensor_split(N)[r]},
        )
    got, _ = call("scenarios.scatter_then_fill", x, number=-1.0)
    for r in range(N):
        same(
            got[r],
            torch.full_like(want[r], -1.0),
            rank=r,
            what="chunk r of x, after -1 was written into what came back,",
            looks_like={"a copy came back: return the chunk of x itself": want[r]},
        )
    by_the_group(ledger, L)


@task("13.2", points=3)
@pytest.mark.parametrize("op", ["mean", "max"])
def test_reduce_scatter_op(op, seed):
    """Other operations"""
    N, L = 3, 100
    x = tensors(seed, N, L)
    got, ledger = call("collectives.ring_reduce_scatter", x, op=op)
    for r in range(N):
        same(
            got[r],
            reduced(x, op).tensor_split(N)[r],
            rank=r,
            tol=quotient(N) if op == "mean" else 0.0,
            looks_like={
                "your own chunk, nothing added: does the last step reach chunk r?": x[r].tensor_split(N)[r],
                **{text: other.tensor_split(N)[r] for text, other in other_results(x, op).items()},
            },
        )
    by_the_group(ledger, L)


@task("13.2", points=2)
def test_reduce_scatter_bf16(seed):
    """bfloat16 stays bfloat16"""
    N, L = 4, 1001
    x = tensors(seed, N, L, BF16, whole=False)
    got, ledger = call("collectives.ring_reduce_scatter", x)
    exact, size = torch.stack(x).double().sum(0), torch.stack(x).double().abs().sum(0)
    for r in range(N):
        # N-1 additions, each rounded once; no partial sum is larger than the sum of the sizes.
        same(got[r], exact.to(BF16).tensor_split(N)[r], rank=r, tol=(N * BF16_ROUNDING * size).tensor_split(N)[r])
    by_the_group(ledger, L)


@task("13.2", points=5)
@RAGGED_AND_EVEN
def test_reduce_scatter_traffic(N, L, seed):
    """N-1 steps of one chunk"""
    x = tensors(seed, N, L)
    _, ledger = call("collectives.ring_reduce_scatter", x)
    for r in range(N):
        sent(
            ledger[r],
            steps=N - 1,
            at_most=4 * (N - 1) * -(-L // N),
            forbid=LIBRARY,
            at_least=1,
            looks_like=patterns(N, r, 4 * L)
            | {"N steps: the last one is too many, chunk r was complete before it": walk(N, r, L, -1, N)},
        )


def shards_of(seed, N, L, dtype=torch.float32):
    """A vector and its chunks by rank."""
    whole = tensors(seed, 1, L, dtype)[0]
    return whole, list(whole.tensor_split(N))


def one_missing(whole, N, r, chunk):
    """`whole` as rank r has it if one chunk was never stored: checks fill fresh memory with NaN, so that it shows."""
    result = whole.clone()
    result.tensor_split(N)[chunk % N].fill_(math.nan)
    return result


def none_stored(whole, N, r):
    """`whole` as rank r has it with its own chunk alone, NaN elsewhere."""
    result = torch.full_like(whole, math.nan)
    result.tensor_split(N)[r].copy_(whole.tensor_split(N)[r])
    return result


def only(shards, places):
    """The joined vector with -1, which gather_into fills in before the call, for every chunk but `places`."""
    return torch.cat([shard if c in places else torch.full_like(shard, -1) for c, shard in enumerate(shards)])


@task("13.3", points=5)
@LENGTHS
def test_all_gather(N, L, seed):
    """Every rank gets all chunks in rank order"""
    whole, shards = shards_of(seed, N, L)
    got, ledger = call("collectives.ring_all_gather", shards, numel=L)
    for r in range(N):
        same(
            got[r],
            whole,
            rank=r,
            looks_like={
                "chunk r+1 was never stored: one step short?": one_missing(whole, N, r, r + 1),
                "your own chunk was never stored": one_missing(whole, N, r, r),
                "nothing that came was stored: out= receives into a chunk, like= makes a new tensor": none_stored(
                    whole, N, r
                ),
                "your own shard alone": shards[r],
                "the chunks stand one place too far to the right": torch.cat([shards[(c - 1) % N] for c in range(N)]),
            },
        )
    by_the_group(ledger, L)


@task("13.3", points=1)
def test_all_gather_bf16(seed):
    """bfloat16 stays bfloat16"""
    N, L = 3, 100
    whole, shards = shards_of(seed, N, L, BF16)
    got, ledger = call("collectives.ring_all_gather", shards, numel=L)
    for r in range(N):
        same(got[r], whole, rank=r)
    by_the_group(ledger, L)


@task("13.3", points=1)
def test_all_gather_into_out(seed):
    """Into out, of which the shard is chunk r"""
    N, L = 4, 103
    whole, shards = shards_of(seed, N, L)
    got, ledger = call("scenarios.gather_into", shards, numel=L)
    for r in range(N):
        expect(isinstance(got[r], tuple) and len(got[r]) == 2, "nothing came back")
        returned, out = got[r]
        same(
            out,
            whole,
            rank=r,
            what="out after the call",
            looks_like={
                "chunk r+1 was never stored: one step short?": only(shards, set(range(N)) - {(r + 1) % N}),
                "only your own chunk is there: the result went to other memory": only(shards, {r}),
            },
        )
        same(returned, whole, rank=r)
    by_the_group(ledger, L)


@task("13.3", points=3)
@RAGGED_AND_EVEN
def test_all_gather_traffic(N, L, seed):
    """N-1 steps of one chunk"""
    _, shards = shards_of(seed, N, L)
    _, ledger = call("collectives.ring_all_gather", shards, numel=L)
    for r in range(N):
        sent(
            ledger[r],
            steps=N - 1,
            at_most=4 * (N - 1) * -(-L // N),
            forbid=LIBRARY,
            at_least=1,
            looks_like={
                "all of the vector at every step: a ring sends one chunk a step": [((r + 1) % N, 4 * L)] * (N - 1),
                "N steps: the last one brings chunk r, which is here already": walk(N, r, L, 0, N),
            },
        )


@task("13.4", points=6)
@lengths((1, 5), (2, 8), (3, 100), (4, 1000), (5, 23), (5, 3))
def test_all_reduce(N, L, seed):
    """Every rank gets the sum"""
    x = tensors(seed, N, L)
    got, ledger = call("collectives.ring_all_reduce", x)
    want, whole = torch.stack(x).sum(0), L // N * N
    for r in range(N):
        same(
            got[r],
            want,
            rank=r,
            looks_like=not_yet(x, r)
            | other_results(x, "sum")
            | {
                "what arrives is rounded to bfloat16 before it is added: keep x's dtype": rounded_on_the_way(x, BF16),
                f"the last {L - whole} numbers are still your own: the remainder of {L} by {N} is ignored": torch.cat(
                    [want[:whole], x[r][whole:]]
                ),
            },
        )
    by_the_group(ledger, L)


def not_yet(x, r):
    """What x holds before the first lap, and after it alone: for causes."""
    return {
        "x as it came in, nothing added": x[r],
        "partial sums, only chunk r is complete: the second lap is missing": partial_sums(x, r),
    }


@task("13.4", points=3)
@pytest.mark.parametrize("op", ["mean", "max"])
def test_all_reduce_op(op, seed):
    """Other operations"""
    N, L = 3, 100
    x = tensors(seed, N, L)
    got, ledger = call("collectives.ring_all_reduce", x, op=op)
    for r in range(N):
        same(
            got[r],
            reduced(x, op),
            rank=r,
            tol=quotient(N) if op == "mean" else 0.0,
            looks_like={"x as it came in, nothing added": x[r]} | other_results(x, op),
        )
    by_the_group(ledger, L)


@task("13.4", points=3)
def test_all_reduce_bf16(seed):
    """bfloat16 stays bfloat16, and all ranks end with the same bits"""
    N, L = 4, 1001
    x = tensors(seed, N, L, BF16, whole=False)
    got, ledger = call("collectives.ring_all_reduce", x)
    exact, size = torch.stack(x).double().sum(0), torch.stack(x).double().abs().sum(0)
    for r in range(N):
        # N-1 additions, each rounded once; no partial sum is larger than the sum of the sizes.
        same(
            got[r],
            exact.to(BF16),
            rank=r,
            tol=N * BF16_ROUNDING * size,
            looks_like={"x as it came in, nothing added": x[r]},
        )
        same(got[r], got[0], rank=r, what="the result, which must be rank 0's to the last bit,")
    by_the_group(ledger, L)


@task("13.4", points=2)
def test_all_reduce_in_place(seed):
    """In place: x holds the result, and x is what comes back"""
    N, L = 3, 100
    x = tensors(seed, N, L)
    got, ledger = call("collectives.ring_all_reduce", x)
    want = torch.stack(x).sum(0)
    for r in range(N):
        came_back = isinstance(got[r], torch.Tensor) and torch.equal(got[r], want)
        same(
            got.inputs[r][0],
            want,
            rank=r,
            what="x after the call",
            looks_like={
                "x is untouched: the result, which came back, is in other memory": x[r],
                "x holds what the first lap left: the second went to other memory": partial_sums(x, r),
            }
            if came_back
            else not_yet(x, r),
        )
    got, _ = call("scenarios.reduce_then_fill", x, number=-1.0)
    for r in range(N):
        same(
            got[r],
            torch.full_like(x[r], -1.0),
            rank=r,
            what="x, after -1 was written into what came back,",
            looks_like={"a copy came back: return x itself": want},
        )
    by_the_group(ledger, L)


@task("13.4", points=6)
@RAGGED_AND_EVEN
def test_all_reduce_traffic(N, L, seed):
    """2 (N-1) steps of one chunk"""
    x = tensors(seed, N, L)
    _, ledger = call("collectives.ring_all_reduce", x)
    for r in range(N):
        sent(
            ledger[r],
            steps=2 * (N - 1),
            at_most=4 * 2 * (N - 1) * -(-L // N),
            forbid=LIBRARY,
            at_least=1,
            looks_like=patterns(N, r, 4 * L),
        )

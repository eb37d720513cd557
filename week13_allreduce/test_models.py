"""The checks of the cost model (13.1), of timing (13.5) and of the ring order (13.6). Read them: nothing is hidden.

Your functions run elsewhere, called by name; only numbers and the ledger come back here.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from labkit.checks import call, call_alone, call_each, expect, field, once, same, task
from labkit.checks.verdict import CheckFailed
from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import replay

# ---- 13.1: the model against the virtual wire. Messages as the collectives send them; what is in them is all the same.


def through_rank_0(group, n):
    x = torch.zeros(n)
    for peer in range(1, group.size):
        if group.rank == 0:
            group.recv(peer, out=x)
        elif group.rank == peer:
            group.send(x, 0)
    for peer in range(1, group.size):
        if group.rank == 0:
            group.send(x, peer)
        elif group.rank == peer:
            group.recv(0, out=x)


def everyone_to_everyone(group, n):
    for s in range(1, group.size):
        group.sendrecv(torch.zeros(n), dst=(group.rank + s) % group.size, src=(group.rank - s) % group.size)


def one_lap(group, n):
    chunk = torch.zeros(n // group.size)
    for _ in range(group.size - 1):
        group.sendrecv(chunk, dst=(group.rank + 1) % group.size, src=(group.rank - 1) % group.size)


def two_laps(group, n):
    one_lap(group, n)
    one_lap(group, n)


TRAFFIC = {
    "naive_all_reduce": through_rank_0,
    "one_shot_all_reduce": everyone_to_everyone,
    "ring_reduce_scatter": one_lap,
    "ring_all_gather": one_lap,
    "ring_all_reduce": two_laps,
}


def on_the_wire(collective, N, nbytes, alpha, bandwidth):
    """Seconds on the virtual wire: a switch, `alpha` seconds a message, `bandwidth` bytes/s. nbytes divides by 4 N."""
    ledgers = run_ranks(TRAFFIC[collective], nbytes // 4, size=N, backend="threads", timeout=60).ledgers
    return replay(ledgers, Topology.switch(N, alpha, bandwidth)).time


@once
def measured_cost(collective, N):
    """[messages, share] as the wire has them: seconds when only messages cost, and when only bytes cost."""
    nbytes = 4 * N
    return on_the_wire(collective, N, nbytes, 1.0, 1e15), on_the_wire(collective, N, nbytes, 0.0, 1.0) / nbytes


# The wire counts time in whole ticks, far below this.
WIRE = 1e-6


@task("13.1", points=7)
@pytest.mark.parametrize("collective", TRAFFIC)
def test_cost(collective):
    """The cost is what the virtual wire replays."""
    sizes = (8, 3, 2)
    for N, got in zip(sizes, call_each(f"cost_model.{collective}_cost", [(N,) for N in sizes])):
        messages, share = measured_cost(collective, N)
        laps = {"ring_all_reduce": 2, "ring_reduce_scatter": 1, "ring_all_gather": 1}.get(collective)
        causes = {"N steps a lap: after N-1 steps a chunk has been everywhere": laps * N} if laps else {}
        if collective == "ring_all_reduce":
            causes["one lap only: an all-reduce is a reduce-scatter and then an all-gather"] = N - 1
        shares = (
            {
                "whole vectors at every step: a ring sends a chunk, n/N bytes": laps * (N - 1),
                "one chunk a lap: N-1 of them follow one another": laps / N,
            }
            if laps
            else {}
        )
        if collective == "naive_all_reduce":
            causes["only the way to rank 0: the sum must come back, too"] = N - 1
            shares["only the way to rank 0: the sum must come back, too"] = N - 1
        same(field(got, "messages"), messages, tol=WIRE, what=f"messages for N = {N}", looks_like=causes)
        same(field(got, "share"), share, tol=WIRE, what=f"share for N = {N}", looks_like=shares)


@task("13.1", points=1)
def test_cost_of_one_rank():
    """A single rank sends nothing."""
    for collective in TRAFFIC:
        got = call_alone(f"cost_model.{collective}_cost", 1)
        for name in ("messages", "share"):
            same(field(got, name), 0, what=f"{name} of {collective} for N = 1")


@task("13.1", points=3)
@pytest.mark.parametrize(
    "small, large",
    [
        pytest.param("one_shot_all_reduce", "ring_all_reduce", id="one-shot and ring"),
        pytest.param("ring_all_reduce", "one_shot_all_reduce", id="never faster"),
        pytest.param("naive_all_reduce", "ring_all_reduce", id="never slower"),
    ],
)
def test_crossover(small, large, seed):
    """From which size on the other algorithm is faster."""
    N, alpha, beta = 8, (10 + seed % 90) * 1e-6, 1e-9 / (10 + seed % 37)
    costs = measured_cost(small, N), measured_cost(large, N)
    got = call_alone("scenarios.crossover", *costs, alpha, beta)
    told = (
        f"the size from which {large} {cost_text(costs[1])} is faster than {small} {cost_text(costs[0])}, alpha "
        f"{alpha:.6g} s, beta {beta:.6g} s/byte,"
    )
    if (small, large) == ("one_shot_all_reduce", "ring_all_reduce"):
        messages, share = costs[1][0] - costs[0][0], costs[0][1] - costs[1][1]
        want = messages * alpha / (share * beta)
        same(
            got,
            want,
            tol=WIRE * want,
            what=told,
            looks_like={
                "in numbers of 4 bytes, expected bytes": want / 4,
                "the other way up: alpha / beta, not beta / alpha": messages * beta / (share * alpha),
                "alpha alone: beta is missing": messages * alpha / share,
            },
        )
    else:
        same(got, math.inf if small == "ring_all_reduce" else 0.0, what=told)


def cost_text(cost):
    """A cost as a failure tells it."""
    return f"(messages {cost[0]:.6g}, share {cost[1]:.6g})"


def a_sweep(seed, noise):
    """A ring's times on the wire from 1 KiB to 1 GiB, with relative noise: sizes, seconds, cost, alpha, beta.

    The noise, `noise` / 2 to `noise` of each time, is above and below in turns: the largest times then always pull a
    line through plain seconds off alpha, and never by accident back onto it."""
    generator = torch.Generator().manual_seed(seed)
    alpha, beta = (0.5 + torch.rand(2, generator=generator, dtype=torch.float64)).tolist()
    alpha, beta, cost = 1e-5 * alpha, 1e-10 * beta, measured_cost("ring_all_reduce", 8)
    sizes = [2**k for k in range(10, 31)]
    size = 0.5 + 0.5 * torch.rand(len(sizes), generator=generator, dtype=torch.float64)
    factor = (1 + noise * size * torch.tensor([1 if (seed + k) % 2 else -1 for k in range(len(sizes))])).tolist()
    return sizes, [(cost[0] * alpha + cost[1] * n * beta) * f for n, f in zip(sizes, factor)], cost, alpha, beta


@task("13.1", points=2)
def test_fit_of_exact_times(seed):
    """Exact times give alpha, beta and residuals of zero."""
    sizes, seconds, cost, alpha, beta = a_sweep(seed, 0.0)
    got = call_alone("scenarios.fit", sizes, seconds, cost)
    # fp64 through a least-squares solver.
    same(
        field(got, "alpha"),
        alpha,
        tol=1e-6 * alpha,
        what="alpha",
        looks_like={"per run: divide by the number of messages": alpha * cost[0]},
    )
    same(
        field(got, "beta"),
        beta,
        tol=1e-6 * beta,
        what="beta",
        looks_like={"per run: divide by the share": beta * cost[1], "a bandwidth, expected seconds a byte": 1 / beta},
    )
    same(field(got, "residuals"), [0.0] * len(sizes), tol=1e-6, what="residuals")


@task("13.1", points=2)
def test_fit_of_noisy_times(seed):
    """Noisy times over six decades: alpha is not drowned by the largest message."""
    sizes, seconds, cost, alpha, beta = a_sweep(seed, 0.05)
    got = call_alone("scenarios.fit", sizes, seconds, cost)
    rows = torch.tensor([[cost[0], cost[1] * n * 1e-10] for n in sizes], dtype=torch.float64)  # beta in units of 1e-10
    plain = torch.linalg.lstsq(rows, torch.tensor(seconds, dtype=torch.float64)[:, None]).solution[:, 0].tolist()
    # With the seeds 0 to 1999 a fit of relative errors is off by 1.4 % at most, in alpha and in beta; the alpha of a
    # fit in plain seconds by 38 % at least. So 10 % lets every one of the first pass and none of the second.
    same(
        field(got, "alpha"),
        alpha,
        tol=0.1 * alpha,
        what="alpha",
        looks_like={
            "least squares in plain seconds: the largest message decides alone; make the errors relative": plain[0]
        },
    )
    same(field(got, "beta"), beta, tol=0.1 * beta, what="beta")
    fitted = [cost[0] * got["alpha"] + cost[1] * n * got["beta"] for n in sizes]
    want = [(t - f) / t for t, f in zip(seconds, fitted)]
    same(
        field(got, "residuals"),
        want,
        tol=1e-6,
        what="residuals",
        looks_like={
            "fitted minus measured, expected measured minus fitted": [-r for r in want],
            "seconds, expected the share of the measured time": [t - f for t, f in zip(seconds, fitted)],
        },
    )


# ---- 13.5: timing, by a clock that moves only while the timed function runs

FIRST, LATER = 0.5, 0.015625  # seconds; sums of these are exact in fp64


@task("13.5", points=2)
def test_time_without_the_first_call(seed):
    """The first, slow call is not in the time, and the time is for one call"""
    iterations = 4 + seed % 4
    got, _ = call("scenarios.timed", [(FIRST, LATER, None)], warmup=2, iterations=iterations)
    same(
        seconds(got[0]),
        LATER,
        looks_like={
            "the first, slow call is in it: is the warm-up outside the clock?": (FIRST + (iterations - 1) * LATER)
            / iterations,
            "the warm-up is in it: read the clock after it": (FIRST + (iterations + 1) * LATER) / iterations,
            "all calls together: divide by the number of iterations": iterations * LATER,
            "the warm-up calls are counted among the iterations": iterations * LATER / (iterations + 2),
        },
    )


@task("13.5", points=2)
def test_time_of_the_slowest(seed):
    """All ranks report the slowest rank's time"""
    N = 3
    own = [LATER * (1 + (seed + r) % N) for r in range(N)]
    got, _ = call("scenarios.timed", [(t, t, None) for t in own], warmup=1, iterations=4)
    for r in range(N):
        same(
            seconds(got[r]),
            max(own),
            rank=r,
            looks_like={
                "this rank's own time: reduce with max over the ranks": own[r],
                "the mean over the ranks, expected the maximum": sum(own) / N,
                "the minimum over the ranks, expected the maximum": min(own),
                "the sum over the ranks, expected the maximum": sum(own),
            },
        )


@task("13.5", points=1.5)
def test_time_order_of_things():
    """check, warm-up, barrier, clock, iterations, clock: nothing more"""
    got, ledger = call("scenarios.timed", [(LATER, LATER, 0)] * 2, warmup=3, iterations=4)
    for r in range(2):
        seconds(got[r])
        log = got[r][1] if isinstance(got[r], tuple) and len(got[r]) == 2 else None
        entries = [entry for entry in log if isinstance(entry, str) and entry.strip()] if isinstance(log, list) else []
        expect(
            isinstance(log, list) and len(entries) == len(log),
            "what your code did on the way came back in no form that can be read",
        )
        did = [entry.split()[0] for entry in entries]
        want = ["check"] + ["run"] * 3 + ["clock"] + ["run"] * 4 + ["clock"]
        expect(
            did == want,
            f"rank {r} did things in another order\n  expected  {' '.join(want)}\n  got       {' '.join(did)}",
        )
        words = next(entry for entry in entries if entry.startswith("clock")).split()
        expect(len(words) > 2 and words[2].isdecimal(), f"rank {r}'s clock was read in no order that can be told")
        before = int(words[2])
        expect(
            any(event.kind == "barrier" for event in ledger[r].events[:before]),
            f"rank {r} reads the clock without a barrier before it: it would time how late the others start",
        )


@task("13.5", points=1)
def test_time_counts_wrong_elements(seed):
    """Wrong elements are added over the ranks"""
    counts = [seed % 5 + 1, 0, seed % 7 + 2]
    got, _ = call("scenarios.timed", [(LATER, LATER, wrong) for wrong in counts], warmup=1, iterations=1)
    for r in range(3):
        seconds(got[r])
        same(
            field(got[r][0], "wrong"),
            sum(counts),
            rank=r,
            what="wrong",
            looks_like={"this rank's own count: add over the ranks": counts[r] if counts[r] else None},
        )
    got, _ = call("scenarios.timed", [(LATER, LATER, None)], warmup=1, iterations=1)
    same(field(got[0][0], "wrong"), 0, what="wrong without a check")


def seconds(answer):
    """The seconds of scenarios.timed's answer."""
    expect(isinstance(answer, tuple) and len(answer) == 2, "nothing came back")
    return field(answer[0], "seconds", "the Timing")


def a_measurement(seed):
    """Bytes and seconds."""
    return 1024 * (1 + seed % 1000), 0.25 + (seed % 31) / 32


@task("13.5", points=0.5)
def test_algbw(seed):
    """Algorithm bandwidth"""
    n, T = a_measurement(seed)
    same(call_alone("timing.algbw", n, T), n / T, tol=1e-9 * n, looks_like={"in GB/s, expected bytes/s": n / T / 1e9})


@task("13.5", points=2)
@pytest.mark.parametrize(
    "collective, share",
    [
        pytest.param("all_reduce", 1.75, id="all_reduce"),
        pytest.param("all_gather", 0.875, id="all_gather"),
        pytest.param("reduce_scatter", 0.875, id="reduce_scatter"),
        pytest.param("broadcast", 1, id="broadcast"),
    ],
)
def test_busbw(collective, share, seed):
    """Bus bandwidth on 8 ranks, as nccl-tests has it"""
    n, T = a_measurement(seed)
    # `share` of the vector must leave every rank: an all-reduce on 8 ranks sends 7/8 of it, twice.
    same(
        call_alone("timing.busbw", collective, n, T, 8),
        share * n / T,
        tol=1e-9 * n,
        looks_like={
            "the algorithm bandwidth: the factor is missing": n / T if share != 1 else None,
            "half of it: an all-reduce moves everything twice": 0.875 * n / T if share == 1.75 else None,
            "all-reduce's factor": 1.75 * n / T if share != 1.75 else None,
            "in GB/s, expected bytes/s": share * n / T / 1e9,
        },
    )


@task("13.5", points=1)
def test_busbw_at_the_edge(seed):
    """Bus bandwidth of a single rank, and of an unknown collective"""
    n, T = a_measurement(seed)
    wanted = {"all_reduce": 0.0, "all_gather": 0.0, "reduce_scatter": 0.0, "broadcast": n / T}
    answers = call_each("timing.busbw", [(collective, n, T, 1) for collective in wanted])
    for (collective, want), got in zip(wanted.items(), answers):
        same(got, want, tol=1e-9 * n, what=f"busbw of {collective} for N = 1")
    got = call_alone("scenarios.refusal", "all_to_none")
    expect(
        got == "ValueError",
        f"an unknown collective must be a ValueError, but it gave {got}",
        cause=(
            ("a KeyError of the dictionary: look whether the name is in it, and raise ValueError yourself",)
            if got == "KeyError"
            else ()
        ),
    )


# ---- 13.6: which ring


def plain(topology):
    """A topology as plain values: what travels to your code."""
    return {
        "size": topology.size,
        "links": {name: link.bandwidth for name, link in topology.links.items()},
        "routes": [(a, b, list(path)) for (a, b), path in topology.routes.items()],
    }


def shared(used, topology):
    """Bytes/s of the slowest of these hops when all are busy: hops on the same link divide it."""
    load: dict[str, int] = {}
    for hop in used:
        for name in topology.path(*hop):
            load[name] = load.get(name, 0) + 1
    return min(topology.links[name].bandwidth / count for name, count in load.items())


def around(order):
    """The hops of a closed ring."""
    return list(zip(order, [*order[1:], order[0]]))


def sockets(order, per_node, inner, outer):
    """len(order) ranks on machines of `per_node` ranks; `order` says which rank sits at which place."""
    base = Topology.two_level(
        len(order) // per_node, per_node, inner_alpha=0.0, inner_bandwidth=inner, outer_alpha=0.0, outer_bandwidth=outer
    )
    routes = {(order[a], order[b]): path for (a, b), path in base.routes.items()}
    return Topology(len(order), base.links, routes)


def shuffled(seed, N):
    return torch.randperm(N, generator=torch.Generator().manual_seed(seed)).tolist()


def cables(seed, N):
    """A cable of its own between each two ranks, both directions different."""
    generator = torch.Generator().manual_seed(seed)
    return Topology.from_bandwidth((1e9 * torch.randint(1, 200, (N, N), generator=generator)).tolist())


@task("13.6", points=4)
@pytest.mark.parametrize("kind", ["own cables", "one link between two sockets"])
def test_bottleneck(kind, seed):
    """Bandwidth of a ring's hops, all busy at once"""
    if kind == "own cables":
        topology, order = cables(seed, 5), [0, *(1 + r for r in shuffled(seed, 4))]
    else:
        topology, order = sockets(list(range(6)), 3, 20e9, 12e9), [0, 3, 1, 4, 2, 5]
    rings = around(order), list(itertools.pairwise(order))  # closed, and open
    *answers, of_nothing = call_each("scenarios.bottleneck", [(plain(topology), used) for used in (*rings, [])])
    for used, got in zip(rings, answers):
        alone = [topology.bandwidth(*hop) for hop in used]
        told = f"the bandwidth in bytes/s of the hops {', '.join(f'{a}->{b}' for a, b in used)}"
        same(
            got,
            shared(used, topology),
            tol=1.0,
            what=told,
            looks_like={
                "in GB/s, expected bytes/s": shared(used, topology) / 1e9,
                "each hop as if it were alone: hops on the same link divide its bandwidth": min(alone)
                if kind != "own cables"
                else None,
                "the fastest hop, expected the slowest": max(alone),
                "the mean of the hops, expected the slowest": sum(alone) / len(alone),
            },
        )
    same(of_nothing, math.inf, what="the bandwidth without hops")


def greedy(topology):
    """The ring that always goes on over the fastest free cable: tempting, and often not the best."""
    order = [0]
    while len(order) < topology.size:
        free = [r for r in range(topology.size) if r not in order]
        order.append(max(free, key=lambda r: topology.bandwidth(order[-1], r)))
    return order


def every_ring(topology):
    """Bytes/s of the fastest of all rings."""
    return max(shared(around((0, *rest)), topology) for rest in itertools.permutations(range(1, topology.size)))


@once
def trap(seed):
    """The seed of cables on which neither the ranks' own order nor the greedy one is best."""
    while True:
        topology = cables(seed, 6)
        best = every_ring(topology)
        if all(shared(around(order), topology) < best for order in (list(range(6)), greedy(topology))):
            return seed
        seed += 1


MACHINES = {
    "switch, N=4": lambda seed: Topology.switch(4, 1e-6, 50e9),
    "own cables, N=6": lambda seed: cables(trap(seed), 6),
    "two sockets, N=4": lambda seed: sockets([0, 2, 1, 3], 2, 20e9, 10e9),
    "four machines of two, N=8": lambda seed: sockets([0, 4, 1, 5, 2, 6, 3, 7], 2, 50e9, 25e9),
}


@once
def fastest(kind, seed):
    """Bytes/s of the best ring."""
    return every_ring(MACHINES[kind](seed))


@task("13.6", points=6)
@pytest.mark.parametrize("kind", MACHINES)
def test_best_ring(kind, seed):
    """No ring is faster"""
    topology = MACHINES[kind](seed)
    got, N = call_alone("scenarios.best_ring", plain(topology)), topology.size
    got = got.tolist() if isinstance(got, torch.Tensor) else got
    is_order = isinstance(got, (list, tuple)) and all(type(r) is int for r in got) and sorted(got) == list(range(N))
    expect(
        is_order and got[0] == 0,
        f"an order of the ranks 0 to {N - 1} that begins with 0 is asked for, but {got!r} came back",
    )
    best, speed = fastest(kind, seed), shared(around(got), topology)
    # `best_ring` may search by `bottleneck`: if that one is wrong, it is to be mended first, and the text says so.
    yours = your_bottleneck(topology, got) if speed < best * (1 - 1e-9) else speed
    orders = {
        "the ranks in their own order": list(range(N)),
        "always the fastest next hop: the last ones, and the way home, pay for it": greedy(topology),
    }
    expect(
        speed >= best * (1 - 1e-9),
        f"the ring {list(got)} is not the fastest\n  expected  {best / 1e9:.6g} GB/s\n"
        f"  got       {speed / 1e9:.6g} GB/s"
        + (
            f"\n  mend bottleneck first: it gives {yours / 1e9:.6g} GB/s for this ring"
            if abs(yours - speed) > 1.0
            else ""
        ),
        # a search that goes by a wrong bottleneck may end anywhere: the order says nothing about the search then
        cause=tuple(text for text, order in orders.items() if list(got) == order and not abs(yours - speed) > 1.0),
    )


def your_bottleneck(topology, order):
    """What the student's `bottleneck` gives for a ring; NaN, of which nothing follows, if it gives no number."""
    try:
        got = call_alone("scenarios.bottleneck", plain(topology), around(order))
    except CheckFailed:
        return math.nan
    return got if isinstance(got, (int, float)) else math.nan

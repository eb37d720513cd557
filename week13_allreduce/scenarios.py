"""Drives your functions where one call is not enough, for test_week13.py. It holds no expected value.

It runs where your code runs; what it returns is judged in test_week13.py, elsewhere.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch

from labkit.checks.elsewhere import Elsewhere
from labkit.comm.topology import Link, Topology

# Each scenario imports the one module it drives: a file that is broken must not stop the checks of another.


def crossover(small, large, alpha, beta):
    """13.1: two costs as (messages, share)."""
    from . import cost_model

    return cost_model.crossover_bytes(cost_model.Cost(*small), cost_model.Cost(*large), alpha, beta)


def fit(nbytes, seconds, cost):
    """13.1: a fit for measurements of a collective with the cost (messages, share)."""
    from . import cost_model

    return cost_model.fit_alpha_beta(nbytes, seconds, cost_model.Cost(*cost))


def scatter_then_fill(x, group, number, ops):
    """13.2: what comes back is a part of x. Writes into it; returns what chunk r of x holds then, for each operation."""
    from . import collectives

    copies = [x.clone() for _ in ops]
    for mine, op in zip(copies, ops):
        collectives.ring_reduce_scatter(mine, group, op).fill_(number)
    return [mine.tensor_split(group.size)[group.rank] for mine in copies]


def gather_into(shard, group, numel):
    """13.3: with `out`, of which the shard is a part, as in 13.4. Returns what came back, and out; and out after -2 was
    written into what came back."""
    from . import collectives

    out = shard.new_full((numel,), -1)
    mine = out.tensor_split(group.size)[group.rank]
    mine.copy_(shard)
    back = collectives.ring_all_gather(mine, group, numel, out=out)
    came = back.clone(), out.clone()
    back.fill_(-2)
    return *came, out


def gather_elsewhere(shard, group, numel):
    """13.3: with `out`, and a shard in the middle of another tensor. Returns what came back, and out."""
    from . import collectives

    out, around = shard.new_full((numel,), -1), torch.cat([-shard, shard, -shard])
    return collectives.ring_all_gather(around[len(shard) : 2 * len(shard)], group, numel, out=out), out


def reduce_then_fill(x, group, number):
    """13.4: whoever uses the result uses x. Writes into what came back; returns what x holds then."""
    from . import collectives

    collectives.ring_all_reduce(x, group).fill_(number)
    return x


def _part(group):
    """All ranks but the first, which stays out: whoever takes the run's numbers for the part's meets the wrong ones."""
    return group.split([list(range(1, group.size))])


def _spread(x):
    """x as every second number of a longer tensor, and what lies between."""
    wide = torch.stack([x, -x], 1).flatten()
    return wide[::2], wide[1::2]


def scatter_in_a_part(x, group, number):
    """13.2: a second call, in a part of the ranks, on a view that is not contiguous. Returns what came back,
    what chunk r of x holds after it was written to, and the numbers between."""
    from . import collectives

    if (part := _part(group)).size:
        (x, between), (other, _) = _spread(x), _spread(x + 1)
        held = x[:]  # the same memory: whoever gives x other memory leaves this as it was
        collectives.ring_reduce_scatter(other, part)
        came = collectives.ring_reduce_scatter(x, part)
        result = came.clone() if isinstance(came, torch.Tensor) else came
        if isinstance(came, torch.Tensor):
            came.fill_(number)
        return result, held.tensor_split(part.size)[part.rank], between


def gather_in_a_part(shard, group, numel):
    """13.3: in a part of the ranks, into a view that is not contiguous, with a shard behind it in the same storage.
    Returns what came back, out, and what lies between; then, of two calls without out, the first one's result after the
    second, the shard after the result was written to, and the group's calls that were given what is not on its device."""
    from . import collectives

    if (part := _part(group)).size:
        wide = torch.cat([shard.new_full((2 * numel,), -1), shard])
        out, watched = wide[: 2 * numel : 2], Elsewhere(part)
        seen = (
            collectives.ring_all_gather(wide[2 * numel :], part, numel, out=out).clone(),
            out,
            wide[1 : 2 * numel : 2],
        )
        with watched:
            mine = shard.clone().to(part.device)
            result = collectives.ring_all_gather(mine, watched, numel)
            collectives.ring_all_gather((-shard).to(part.device), watched, numel)
        kept = result.clone()
        result.fill_(-2)
        return *seen, kept, mine, watched.astray


def reduce_in_a_part(x, group):
    """13.4: a second call, in a part of the ranks, on a view that is not contiguous. Returns x, and the numbers
    between."""
    from . import collectives

    if (part := _part(group)).size:
        (x, between), (other, _) = _spread(x), _spread(x + 1)
        held = x[:]  # as above
        collectives.ring_all_reduce(other, part)
        collectives.ring_all_reduce(x, part)
        return held, between


def timed(first, later, wrong, group, warmup, iterations):
    """13.5: time a run whose first call takes `first` seconds on this rank and every later one `later`, by a clock
    that moves only while it runs. Returns the Timing's fields, and what happened in which order."""
    from . import timing

    timing.time_collective(lambda: None, group, warmup=1, iterations=1, clock=lambda: 0.0)  # a first call, of another
    now, log = 0.0, []

    def did(what):
        log.append(f"{what} after {len(group.ledger.events)} calls of the group")

    def run():
        nonlocal now
        now += later if any(entry.startswith("run") for entry in log) else first
        did("run")

    def check():
        did("check")
        return wrong

    def clock():
        did("clock")
        return now

    result = timing.time_collective(
        run, group, check=None if wrong is None else check, warmup=warmup, iterations=iterations, clock=clock
    )
    return result, log


def timed_by_default(later, group):
    """13.5: time a run of `later` seconds without passing a clock, where `device_clock` gives one that moves only while it runs.
    Returns the devices for which it was called, and the Timing's fields."""
    from . import timing

    now, devices, kept = 0.0, [], timing.device_clock

    def run():
        nonlocal now
        now += later

    def device_clock(device):
        devices.append(str(device))
        return lambda: now

    timing.device_clock = device_clock
    try:
        return devices, timing.time_collective(run, group)
    finally:
        timing.device_clock = kept


def timed_elsewhere(start, later, wrong, group):
    """13.5: time a run as on a GPU, where a tensor that is made without a device lies on the CPU. Returns the group's
    calls that were given one, and the Timing's fields. The clock begins at `start`, and goes on by `later`."""
    from . import timing

    watched, ticks = Elsewhere(group), iter(range(start, start + 10 * later, later))
    with watched:
        result = timing.time_collective(
            lambda: None, watched, check=lambda: wrong, warmup=1, iterations=1, clock=lambda: float(next(ticks))
        )
    return watched.astray, result


def refusal(collective, N):
    """13.5: what busbw raises for a collective it does not know."""
    from . import timing

    try:
        return f"the number {timing.busbw(collective, 1024, 1.0, N)}"
    except Exception as error:
        return type(error).__name__


def bottleneck(graph, used):
    """13.6: for a graph as plain values (see test_week13.plain)."""
    from . import topology

    return topology.bottleneck([tuple(hop) for hop in used], _topology(graph))


def best_ring(graph):
    """13.6. A search may begin without hops; what `bottleneck` says of none is judged by itself, and costs nothing
    here."""
    from . import topology

    yours = getattr(topology, "bottleneck", None)
    if not callable(yours):
        return topology.best_ring(_topology(graph))

    def with_none(used, graph):
        return math.inf if isinstance(used, (list, tuple)) and not used else yours(used, graph)

    topology.bottleneck = with_none
    try:
        return topology.best_ring(_topology(graph))
    finally:
        topology.bottleneck = yours


def halving_refused(N):
    """13.9: what halving and doubling raises on so many ranks."""
    from .stretch.halving_doubling import halving_doubling_all_reduce

    return _raised(halving_doubling_all_reduce, torch.ones(100), _silent(N))


def levels_refused(N, per_node):
    """13.10: what the all-reduce on two levels raises for nodes of this size."""
    from .stretch.hierarchical import hierarchical_all_reduce

    return _raised(hierarchical_all_reduce, torch.ones(100), _silent(N), per_node)


def topo_refused(text):
    """13.11: what reading this text raises."""
    from .stretch import smi

    return _raised(smi.parse_topo, text)


def _silent(N):
    """A group as rank 0 of N sees it, in which nothing can be sent: whoever does not refuse N ranks is stopped there."""

    def message(*args, **kwargs):
        raise ConnectionError

    calls = dict.fromkeys(("send", "recv", "sendrecv", "isend", "irecv", "batch", "barrier"), message)
    return SimpleNamespace(rank=0, size=N, device=torch.device("cpu"), ledger=None, **calls)


def _raised(function, *args):
    """The name of the error that a call raises."""
    try:
        function(*args)
    except NotImplementedError:  # a blank is no answer
        raise
    except Exception as error:
        return type(error).__name__
    return "nothing"


def machine(text, **speeds):
    """13.11: what `nvidia-smi topo -m` printed, as a machine and as a link graph: the links of each way, as
    (name, bandwidth, latency)."""
    from .stretch import smi

    parsed = smi.parse_topo(text)
    graph = smi.to_topology(parsed, **speeds)
    links = {name: (name, link.bandwidth, link.latency) for name, link in graph.links.items()}
    return parsed, [(a, b, [links[name] for name in path]) for (a, b), path in graph.routes.items()]


def _topology(graph):
    links = {name: Link(bandwidth) for name, bandwidth in graph["links"].items()}
    return Topology(graph["size"], links, {(a, b): names for a, b, names in graph["routes"]})


def race(x, group, graph):
    """13.13: the entry on wires that come as plain values (see race.plain)."""
    from .stretch import fastest

    links = {name: Link(bandwidth, latency) for name, bandwidth, latency in graph["links"]}
    routes = {(a, b): names for a, b, names in graph["routes"]}
    fastest.fastest_all_reduce(x, group, Topology(graph["size"], links, routes, graph["name"]))

"""Self-checks of the stretch tasks, for no points: `lab check 13.8`, say. `lab check week13` leaves them out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from labkit.checks import call, call_alone, expect, field, same, sends, sent, task, tensors
from labkit.checks.traffic import LIBRARY
from labkit.comm.topology import Link, Topology
from week13_allreduce.given import machines
from week13_allreduce.test_topology import around, shared

DATA = Path(__file__).parent / "data"
OPS = pytest.mark.parametrize("op", ["sum", "mean", "max"])


def all_reduced(seed, name, N, L, op, at_most, **kwargs):
    """Call an in-place all-reduce; check result, traffic (numbers a rank sends) and that nothing built in was used."""
    x = tensors(seed, N, L)
    got, ledger = call(name, x, op=op, in_place=True, **kwargs)
    total = torch.stack(x)
    want = {"sum": total.sum(0), "mean": total.sum(0) / N, "max": total.amax(0)}[op]
    # A mean may be divided in several places: N roundings of numbers below 1000 N.
    tol = N * 1000 * N * 2.0**-24 if op == "mean" else 0.0
    for r in range(N):
        same(got[r], want, rank=r, tol=tol)
        same(got.inputs[r][0], want, rank=r, tol=tol, what="x after the call")
        sent(ledger[r], at_most=4 * at_most, forbid=LIBRARY)
    return ledger


def refused(what, raised, error="ValueError"):
    """Pass if the scenario says that this error came, before anything was sent."""
    came = {"nothing": "nothing was raised", "ConnectionError": "a message was sent"}.get(
        raised, f"{raised} was raised"
    )
    expect(raised == error, f"{what}: {error} is expected, and {came}", known=True)


@task("13.8", points=0)
@OPS
def test_tree(op, seed):
    """Along a tree, whatever the size"""
    for N, L in [(1, 5), (2, 8), (5, 17)]:
        rounds = (N - 1).bit_length()
        all_reduced(seed, "stretch.tree.tree_all_reduce", N, L, op, L * max(1, rounds))


@task("13.8", points=0)
def test_tree_cost():
    """The tree's cost"""
    for N, rounds in [(1, 0), (2, 1), (5, 3), (8, 3), (1024, 10)]:
        got = call_alone("stretch.tree.tree_all_reduce_cost", N)
        same(field(got, "messages"), 2 * rounds, what=f"messages for N = {N}")
        same(field(got, "share"), 2 * rounds, what=f"share for N = {N}", tol=1e-9)


@task("13.9", points=0)
@OPS
def test_halving_doubling(op, seed):
    """Halving and doubling on a power of two"""
    for N, L in [(1, 5), (2, 9), (4, 103)]:
        name, far = "stretch.halving_doubling.halving_doubling_all_reduce", [N >> k for k in range(1, N.bit_length())]
        for r, one in enumerate(all_reduced(seed, name, N, L, op, 2 * (N - 1) * -(-L // N))):
            to, ways = [peer for peer, _ in sends(one)], [r ^ d for d in far + far[::-1]]
            expect(to == ways, f"rank {r} of {N} sends to {ways}, one after another, and it did to {to}", known=True)


@task("13.9", points=0)
def test_halving_doubling_needs_a_power_of_two():
    """ValueError for any other number of ranks"""
    for N in (3, 6, 12):
        refused(f"{N} ranks", call_alone("scenarios.halving_refused", N))


@task("13.9", points=0)
def test_halving_doubling_cost():
    """Its cost"""
    for N, rounds in [(1, 0), (2, 1), (8, 3)]:
        got = call_alone("stretch.halving_doubling.halving_doubling_cost", N)
        same(field(got, "messages"), 2 * rounds, what=f"messages for N = {N}")
        same(field(got, "share"), 2 * (N - 1) / N, what=f"share for N = {N}", tol=1e-9)


@task("13.10", points=0)
@OPS
def test_hierarchical(op, seed):
    """On nodes of two and of three, and on one node"""
    for N, P in [(4, 2), (4, 4), (6, 2), (6, 3)]:
        M, C = N // P, -(-103 // P)
        far = 2 * (M - 1) * -(-C // M)  # numbers that leave the node: the i-th ranks' rings, each of one chunk
        name = "stretch.hierarchical.hierarchical_all_reduce"
        for r, one in enumerate(all_reduced(seed, name, N, 103, op, 2 * (P - 1) * C + far, per_node=P)):
            left = [nbytes for peer, nbytes in sends(one) if peer // P != r // P]
            what = (
                f"rank {r} of {N} on nodes of {P} sends {len(left)} messages of {sum(left)} bytes in all to other nodes"
            )
            most = f"a ring of its chunk needs {2 * (M - 1)} of {4 * far} at most"
            expect(sum(left) <= 4 * far and len(left) <= 2 * (M - 1), f"{what}, and {most}", known=True)


@task("13.10", points=0)
def test_hierarchical_needs_whole_nodes():
    """ValueError where the ranks fill no whole number of nodes"""
    for N, per_node in ((4, 3), (3, 2)):
        refused(f"{N} ranks on nodes of {per_node}", call_alone("scenarios.levels_refused", N, per_node))


@task("13.11", points=0)
@pytest.mark.parametrize(
    "name, gpus, nics, first_and_last, sockets",
    [
        ("topo_nvswitch_8xh100.txt", 8, 9, "NV18", 2),
        ("topo_cube_mesh_8xv100.txt", 8, 2, "SYS", 2),
        ("topo_bridges_4x3090.txt", 4, 0, None, 1),
        ("topo_two_sockets_8x4090.txt", 8, None, "SYS", 2),
    ],
)
def test_real_outputs(name, gpus, nics, first_and_last, sockets):
    """Real outputs of nvidia-smi topo -m"""
    machine, hops = call_alone("scenarios.machine", (DATA / name).read_text())
    names = [f"GPU{i}" for i in range(gpus)]
    expect(field(machine, "gpus") == names, f"the GPUs are {machine['gpus']}")
    expect(nics is None or len(field(machine, "nics")) == nics, f"the network cards are {machine['nics']}")
    expect(
        first_and_last is None or machine["between"].get((names[0], names[-1])) == first_and_last,
        f"between the first GPU and the last lies {machine['between'].get((names[0], names[-1]))}",
    )
    expect(len(set(machine["socket"].values())) == sockets, f"the sockets are {machine['socket']}")
    expect(len(hops) == gpus * (gpus - 1), f"{len(hops)} pairs of GPUs have a way")


def matrix(symbols):
    """What nvidia-smi prints of GPUs with these symbols between them."""
    titles = [*(f"GPU{i}" for i in range(len(symbols))), "CPU Affinity", "NUMA Affinity"]
    rows = [[s if k != i else "X" for k, s in enumerate(row)] for i, row in enumerate(symbols)]
    return "\n".join(map("\t".join, [titles, *([f"GPU{i}", *row, "0-7", "0"] for i, row in enumerate(rows))]))


def cables(*numbers):
    """A matrix of NVLinks between all pairs, and its link graph."""
    text = matrix([[f"NV{n}" for n in row] for row in numbers])
    return text, lambda alpha: Topology.from_bandwidth([[25e9 * n for n in row] for row in numbers], alpha)


def one_down(alpha):
    """Three GPUs on a switch of NVLinks, four each, and one whose NVLink is down: PCIe from there and to there."""
    pairs = [(a, b, "" if 3 in (a, b) else ".nvlink") for a in range(4) for b in range(4) if a != b]
    routes = {(a, b): (f"{a}{side}.up", f"{b}{side}.down") for a, b, side in pairs}
    links = {name: Link(100e9 if "nvlink" in name else 24e9, alpha) for path in routes.values() for name in path}
    return Topology(4, links, routes)


DOWN = matrix([["PIX" if 3 in (i, k) else "NV4" for k in range(4)] for i in range(4)])
GRAPHS = {
    "its NVLink down": (DOWN, one_down),
    "a switch": ("topo_nvswitch_8xh100.txt", machines.nvswitch),
    "cables, and PCIe": ("topo_cube_mesh_8xv100.txt", machines.cube_mesh),
    "two sockets": ("topo_two_sockets_8x4090.txt", machines.two_sockets),
    "one bridge": cables([0, 12], [12, 0]),
    "unequal cables": cables([0, 1, 2], [1, 0, 4], [2, 4, 0]),
}


@task("13.11", points=0)
@pytest.mark.parametrize("kind", GRAPHS)
def test_link_graph(kind, seed):
    """Which links there are, how fast, and which ways share them"""
    draw = random.Random(f"{kind} {seed}")
    text, build = GRAPHS[kind]
    text = (DATA / text).read_text() if text.endswith(".txt") else text
    text = text.replace("SYS", "SOC").replace("PIX", "PSB")  # in an older driver's words
    alpha, faster = draw.uniform(1e-6, 9e-6), draw.uniform(1.5, 3.0)
    want = build(alpha)
    speeds = {"nvlink": 25e9 * faster, "pcie": 24e9 * faster, "smp": 10e9 * faster}
    _, ways = call_alone("scenarios.machine", text, alpha=alpha, **speeds)
    links = {name: Link(bandwidth, latency) for _, _, path in ways for name, bandwidth, latency in path}
    got = Topology(want.size, links, {(a, b): [name for name, _, _ in path] for a, b, path in ways})
    expect(set(got.routes) == set(want.routes), f"{len(got.routes)} pairs of GPUs have a way, of {len(want.routes)}")
    for a, b in want.routes:
        same(got.alpha(a, b), want.alpha(a, b), tol=1e-12, what=f"alpha from GPU{a} to GPU{b}, in seconds,")
    orders = [draw.sample(range(want.size), want.size) for _ in range(20)]
    for used in [[hop] for hop in want.routes] + [around(order) for order in orders]:
        text = " ".join(f"{a}->{b}" for a, b in used)
        same(shared(used, got), shared(used, want) * faster, tol=1.0, what=f"bytes/s of {text}, all busy at once,")


@task("13.11", points=0)
def test_no_matrix():
    """LabError where the matrix is not whole"""
    titles, *rows = DOWN.split("\n")
    for what, text in {
        "no matrix": "NVIDIA-SMI has failed",
        "a row that is missing": "\n".join([titles, *rows[:2], *rows[3:]]),
        "a row that is too short": "\n".join([titles, *rows[:3], "GPU3\tPIX\tPIX\tPIX"]),
        "a symbol that is unknown": DOWN.replace("PIX", "PIT"),
    }.items():
        refused(what, call_alone("scenarios.topo_refused", text), "LabError")


@task("13.12", points=0)
@OPS
def test_pipelined(op, seed):
    """Slices and two directions"""
    for N, L in [(1, 5), (2, 8), (5, 103)]:
        for slices, directions in [(1, 2), (4, 2), (4, 1)]:
            # Chunks of halves of x: one number more for each half.
            more = {"slices": slices, "directions": directions}
            name, most = "stretch.pipelined.pipelined_ring_all_reduce", 2 * (N - 1) * (-(-L // N) + 2)
            for r, one in enumerate(all_reduced(seed, name, N, L, op, most, **more)):
                to, ways = {peer for peer, _ in sends(one)}, {(r + d) % N for d in (1, -1)[:directions]}
                text = f"in {directions} directions rank {r} of {N} sends to {sorted(ways)}, and it did to {sorted(to)}"
                expect(to == ways or N == 1, text, known=True)
                sent(one, steps=2 * (N - 1) * slices)
                if directions == 1:
                    in_slices(one, N, L, slices)


def in_slices(ledger, N, L, slices):
    """Every step sends a chunk, slice after slice: the next chunk's come behind all of this one's."""
    numbers, chunks = [nbytes // 4 for _, nbytes in sends(ledger)], [L // N + (c < L % N) for c in range(N)]
    for t in range(2 * (N - 1)):
        now, whole = numbers[t * slices : (t + 1) * slices], chunks[(ledger.rank - t - 1) % N]
        text = f"step {t} of rank {ledger.rank} of {N} sends a chunk of {whole} numbers in {slices} slices one after another"
        expect(sum(now) == whole and max(now) <= -(-whole // slices), f"{text}; {now} went", known=True)

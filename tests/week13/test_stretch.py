"""The stretch solutions: right values, the traffic their docstrings promise, and real `nvidia-smi` outputs."""

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import replay
from labkit.errors import LabError
from week13_allreduce import collectives, topology
from week13_allreduce.given import experiments, machines
from week13_allreduce.stretch import halving_doubling, hierarchical, pipelined, smi, tree

DATA = Path(smi.__file__).parents[1] / "data"
ALPHA, BANDWIDTH = 5e-6, 50e9


def reduced(function, N, L, op="sum", dtype=torch.float32, **kwargs):
    """Run an in-place all-reduce on whole numbers; checks identity, bits and values. Returns the ledgers."""
    x = [((torch.arange(L) * 7 + 3 * r) % 13 - 6).to(dtype) for r in range(N)]

    def job(group):
        mine = x[group.rank].clone()
        assert function(mine, group, op=op, **kwargs) is mine
        return mine

    results = run_ranks(job, size=N, backend="threads")
    total = torch.stack(x).double()
    want = {"sum": total.sum(0), "mean": total.sum(0) / N, "max": total.amax(0)}[op].to(dtype)
    for got in results:
        assert torch.equal(got, results[0])
        # Whole numbers: sums and maxima are exact. A mean is one division of an exact sum, rounded once or twice.
        torch.testing.assert_close(got, want, rtol=0 if op != "mean" else 2**-8, atol=0)
    return results.ledgers


@pytest.mark.parametrize("op", collectives.OPS)
@pytest.mark.parametrize("N, L", [(1, 5), (2, 8), (3, 0), (4, 3), (5, 17), (8, 129)])
def test_tree_and_pipelined_for_any_size(N, L, op):
    reduced(tree.tree_all_reduce, N, L, op)
    reduced(pipelined.pipelined_ring_all_reduce, N, L, op)
    reduced(pipelined.pipelined_ring_all_reduce, N, L, op, slices=1)


@pytest.mark.parametrize("op", collectives.OPS)
@pytest.mark.parametrize("N, L", [(1, 5), (2, 9), (4, 3), (8, 129)])
def test_halving_doubling(N, L, op):
    reduced(halving_doubling.halving_doubling_all_reduce, N, L, op)


def test_halving_doubling_needs_a_power_of_two():
    with pytest.raises(LabError, match="power of two"):
        run_ranks(
            lambda group: halving_doubling.halving_doubling_all_reduce(torch.ones(6), group), size=3, backend="threads"
        )


@pytest.mark.parametrize("op", collectives.OPS)
@pytest.mark.parametrize("N, per_node, L", [(4, 2, 10), (6, 3, 7), (6, 2, 1), (4, 4, 9), (4, 1, 9)])
def test_hierarchical(N, per_node, L, op):
    reduced(hierarchical.hierarchical_all_reduce, N, L, op, per_node=per_node)


def test_hierarchical_wants_whole_nodes():
    with pytest.raises(LabError, match="no whole number of nodes"):
        run_ranks(
            lambda group: hierarchical.hierarchical_all_reduce(torch.ones(6), group, 2), size=3, backend="threads"
        )


def test_bfloat16_stays_bfloat16():
    for function in (
        tree.tree_all_reduce,
        pipelined.pipelined_ring_all_reduce,
        halving_doubling.halving_doubling_all_reduce,
    ):
        reduced(function, 4, 50, dtype=torch.bfloat16)


@pytest.mark.parametrize("N", [2, 3, 4, 7, 8])
def test_costs_are_what_the_wire_replays(N):
    wire, L = Topology.switch(N, ALPHA, BANDWIDTH), 840 * N
    pairs = [(tree.tree_all_reduce, tree.tree_all_reduce_cost)]
    if N & (N - 1) == 0:
        pairs.append((halving_doubling.halving_doubling_all_reduce, halving_doubling.halving_doubling_cost))
    for function, cost in pairs:
        time = replay(reduced(function, N, L), wire).time
        assert time == pytest.approx(cost(N).time(4 * L, ALPHA, 1 / BANDWIDTH), rel=1e-9)
    assert tree.tree_all_reduce_cost(1) == (0, 0)


def test_two_directions_use_cables_that_one_leaves_dark():
    cables = Topology.from_bandwidth([[25e9] * 4] * 4, alpha=0.0)
    one = experiments.on_wire(collectives.ring_all_reduce, cables, 1 << 24).time
    both = experiments.on_wire(pipelined.pipelined_ring_all_reduce, cables, 1 << 24).time
    assert both == pytest.approx(one / 2, rel=1e-6)


def test_hierarchical_beats_the_flat_ring_between_nodes():
    wire = Topology.two_level(4, 4, inner_alpha=1e-6, inner_bandwidth=400e9, outer_alpha=20e-6, outer_bandwidth=25e9)
    flat = experiments.on_wire(collectives.ring_all_reduce, wire, 1 << 14).time
    two = experiments.on_wire(hierarchical.hierarchical_all_reduce, wire, 1 << 14, per_node=4).time
    assert two < flat


# ---- nvidia-smi topo -m


def read(name):
    return smi.parse_topo((DATA / name).read_text())


def test_real_outputs_of_nvidia_smi():
    h100 = read("topo_nvswitch_8xh100.txt")
    assert len(h100.gpus) == 8 and len(h100.nics) == 9 and h100.cpus["GPU5"] == "80-159"
    assert h100.between["GPU0", "GPU7"] == "NV18" and h100.between["NIC8", "GPU0"] == "PIX"
    assert list(h100.socket.values()) == [0] * 4 + [1] * 4
    mesh = read("topo_cube_mesh_8xv100.txt")  # blanks instead of tabs, and no NUMA column
    assert mesh.nics == ["mlx5_0", "mlx5_1"] and mesh.between["GPU0", "GPU7"] == "SYS" and mesh.socket["GPU4"] == 1
    bridges = read("topo_bridges_4x3090.txt")
    assert bridges.between["GPU0", "GPU2"] == "NV4" and set(bridges.socket.values()) == {0}
    for topo in (h100, mesh, bridges, read("topo_two_sockets_8x4090.txt")):
        devices = topo.gpus + topo.nics
        assert all(topo.between[a, b] == topo.between[b, a] for a in devices for b in devices if a != b)


def test_an_underlined_header_and_a_legend_do_not_matter():
    text = (DATA / "topo_bridges_4x3090.txt").read_text()
    lines = text.splitlines()
    lines[1] = "\x1b[4m" + lines[1].strip() + "\x1b[0m"
    decorated = "\n".join(lines) + "\n\nLegend:\n\n  X    = Self\n  NV#  = bonded NVLinks\n"
    assert smi.parse_topo(decorated) == smi.parse_topo(text)


def test_what_is_no_matrix_is_refused():
    with pytest.raises(LabError, match="GPU0"):
        smi.parse_topo("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    with pytest.raises(LabError, match="row GPU1 has 1 cells"):
        smi.parse_topo("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\n")


@st.composite
def pasted(draw):
    """(a matrix as somebody may have pasted it, the machine)."""
    N, M = draw(st.integers(2, 8)), draw(st.integers(0, 3))
    devices = [f"GPU{i}" for i in range(N)] + [draw(st.sampled_from(["NIC", "mlx5_"])) + str(i) for i in range(M)]
    symbols = ["NV4", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "PSB"]
    between = {pair: draw(st.sampled_from(symbols)) for pair in itertools.combinations(devices, 2)}
    between |= {(b, a): symbol for (a, b), symbol in between.items()}
    # In WSL all affinities are empty, in a Slurm job of one core those of the other socket's GPUs (a cluster's guide
    # shows it); a report on eight V100 has doubled tabs.
    blank = draw(st.sampled_from(["", "CPUs of some", "all"]))
    crlf, tabs, twice = draw(st.booleans()), draw(st.booleans()), not blank and draw(st.booleans())
    cpus = ["" if blank == "all" or (blank and i < N // 2) else f"{8 * i}-{8 * i + 7}" for i in range(N)]
    on = draw(st.sampled_from(["", "\x1b[4m", "[4m", "\x1b[1;4m"]))
    off = on and on.partition("[")[0] + "[0m"
    lines = [on + "\t" + "\t".join(devices) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID" + off]
    for i, a in enumerate(devices):
        home = f"{cpus[i]}\t{'' if blank == 'all' else i % 2}\t\tN/A" if i < N else ""
        lines.append(a + "\t" + ("\t" * (1 + twice)).join(between.get((a, b), " X ") for b in devices) + "\t" + home)
    if draw(st.booleans()):
        peers = [f"GPU{i}" for i in range(N)]
        cell = draw(st.sampled_from(["GNS", "OK", "CNS", "TNS", "NS"]))
        before = [" \t" + "\t".join(peers)] + [
            f" {a}\t" + "\t".join("X" if a == b else cell for b in peers) for a in peers
        ]
        lines = [*before, "", "Legend:", "", "  X    = Self", "  GNS  = GPU not supported", "", *lines]
    lines += ["", "Legend:", "", "  X    = Self", "  SYS  = Connection traversing PCIe", "", "NIC0: mlx5_0"]
    mark = draw(st.sampled_from(["", "> ", "    ", ">> ", "# ", "#"]))
    text = "".join(mark + line + ("\r\n" if crlf else "\n") for line in lines)
    text = draw(st.sampled_from(["", "\ufeff", "```\n", "$ nvidia-smi topo -m\n"])) + text
    today = {pair: {"SOC": "SYS", "PSB": "PIX"}.get(symbol, symbol) for pair, symbol in between.items()}
    machine = (devices[:N], devices[N:], today, dict(zip(devices, cpus)))
    return text if tabs else text.expandtabs(), machine, blank == "all"


@given(pasted())
@settings(max_examples=150, deadline=None)
def test_a_matrix_however_it_was_pasted(made):
    text, machine, blank = made
    topo = smi.parse_topo(text)
    assert tuple(topo[:4]) == machine
    if not blank:
        assert topo.socket == {gpu: i % 2 for i, gpu in enumerate(topo.gpus)}
    crossing = any(topo.between[a, b] == "SYS" for a in topo.gpus for b in topo.gpus if a != b)
    assert any("socket" in name for name in smi.to_topology(topo).links) == crossing


@pytest.mark.parametrize("lost", ["\tGPU1\tNIC0", "\tNIC0\tNIC1"])
def test_columns_that_a_terminal_joined_are_a_sentence(lost):
    whole = "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\nGPU0\t X \tNV4\tPIX\tSYS\t0-7\nGPU1\tNV4\t X \tSYS\tPIX\t0-7\n"
    whole += "NIC0\tPIX\tSYS\t X \tSYS\nNIC1\tSYS\tPIX\tSYS\t X \n"
    assert smi.parse_topo(whole).nics == ["NIC0", "NIC1"]
    with pytest.raises(LabError, match="joined"):
        smi.parse_topo(whole.replace(lost, lost[:5] + lost[6:], 1))


@pytest.mark.parametrize("symbol", ["N/A", "XGMI", "OKAY", "?", "nv4", "ERR"])
def test_an_unknown_symbol_is_a_sentence(symbol):
    with pytest.raises(LabError, match="no symbol"):
        smi.parse_topo(f"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{symbol}\t0-7\nGPU1\t{symbol}\t X \t0-7\n")


@pytest.mark.parametrize(
    "name, machine",
    [
        ("topo_cube_mesh_8xv100.txt", machines.cube_mesh),
        ("topo_two_sockets_8x4090.txt", machines.two_sockets),
        ("topo_nvswitch_8xh100.txt", machines.nvswitch),
    ],
)
def test_the_given_machines_are_what_nvidia_smi_printed(name, machine):
    parsed, given = smi.to_topology(read(name), alpha=1e-6), machine(1e-6)
    assert parsed.links == given.links
    assert parsed.routes == given.routes


@given(st.integers(3, 8), st.integers(0, 2), st.sampled_from([4, 12, 18]), st.sampled_from(["PIX", "NODE", "SYS"]))
def test_a_gpu_whose_nvlink_is_down_leaves_the_others_on_their_switch(linked, down, links, way):
    """As a report on eight B200 shows it. No GPU has more links than its symbol says, however many it talks to."""
    N = linked + down
    rows = [[" X " if a == b else way if max(a, b) >= linked else f"NV{links}" for b in range(N)] for a in range(N)]
    lines = ["\t".join([f"GPU{a}", *row, "0-7", "0"]) for a, row in enumerate(rows)]
    head = "\t".join(["", *(f"GPU{a}" for a in range(N)), "CPU Affinity", "NUMA Affinity"])
    graph = smi.to_topology(smi.parse_topo("\n".join([head, *lines])), nvlink=25e9, pcie=24e9, smp=10e9)
    sent = [(0, other) for other in range(1, linked)]
    assert topology.bottleneck(sent, graph) == pytest.approx(25e9 * links / len(sent))
    for a, b in itertools.permutations(range(N), 2):
        slow = 10e9 if way == "SYS" else 24e9
        assert graph.bandwidth(a, b) == (slow if max(a, b) >= linked else 25e9 * links)


def test_bridges_do_not_help_a_ring_that_must_leave_them():
    graph = smi.to_topology(read("topo_bridges_4x3090.txt"), nvlink=14e9)
    assert topology.ring_bandwidth([0, 2, 3, 1], graph) == topology.ring_bandwidth([0, 1, 2, 3], graph) == 24e9
    assert topology.bottleneck([(0, 2), (2, 0)], graph) == 56e9

"""From `nvidia-smi topo -m` to a link graph (task 13.11, stretch, no points).

The command prints a matrix: one row and one column for each GPU and each network card, and in the cell the *worst*
thing that lies between the two (data/README.md has the symbols, and four real outputs). Behind a GPU's row follow the
CPUs and the NUMA node it is nearest to.

    GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity           words, not columns: a title may hold a blank,
    GPU0     X      NV4     PIX   0-23      0                       some versions use tabs and some use blanks,
    GPU1    NV4      X      SYS   24-47     1                       and on a terminal the header is underlined

The matrix names relations; a ring needs links. Between two GPUs we assume

    NV#, and all pairs have the same   an NVSwitch: every GPU has # links up to it and # links down from it
    NV#, otherwise                     a cable of # NVLinks between these two, which nobody else uses
    PIX PXB PHB NODE                   each GPU's own PCIe link, up and down, to a switch or CPU that keeps up
    SYS                                the same, and between them the link between the sockets, which all pairs share

That is a model too: it trusts every PCIe switch and knows nothing of lanes that a slot lacks. The cure is to measure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from labkit.comm.topology import Link, Topology
from labkit.errors import LabError


class Topo(NamedTuple):
    """One machine, as `nvidia-smi topo -m` describes it."""

    # A table of what each field holds stays one:
    # fmt: off
    gpus: list[str]                         # "GPU0", ...
    nics: list[str]                         # "NIC0", "mlx5_0", ...
    between: dict[tuple[str, str], str]     # (device, device) -> symbol, for every two different devices, both ways
    cpus: dict[str, str]                    # GPU -> "0-79", or "" if not told
    socket: dict[str, int]                  # GPU -> 0, 1, ...: its NUMA node, numbered as they appear
    # fmt: on


def sockets(gpus: list[str], numa: dict[str, str], cpus: dict[str, str]) -> dict[str, int]:
    """Number the GPUs' sockets (given): by NUMA node where it is told, else by the CPUs they are nearest to."""
    home = numa if all(numa.get(gpu, "").isdigit() for gpu in gpus) else cpus
    order = list(dict.fromkeys(home[gpu] for gpu in gpus))
    return {gpu: order.index(home[gpu]) for gpu in gpus}


def parse_topo(text: str) -> Topo:
    """Task 13.11. Read the output of `nvidia-smi topo -m`.

    Tabs or blanks, with or without a NUMA column, the header underlined or not; lines with `#` in front and whatever
    follows the matrix (the legend) are ignored. LabError if no matrix is found, or a row is too short.
    """
    ### BEGIN SOLUTION 13.11 parse nvidia-smi topo -m
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    at = next((i for i, line in enumerate(lines) if line.split()[0] == "GPU0" and "X" not in line.split()), None)
    if at is None:
        raise LabError("this is no output of nvidia-smi topo -m: no line of titles that begins with GPU0 was found.")
    titles = lines[at].split()
    devices = titles[: titles.index("CPU")] if "CPU" in titles else titles
    has_numa = "NUMA" in titles
    cpus: dict[str, str] = {}
    numa: dict[str, str] = {}
    between: dict[tuple[str, str], str] = {}
    for line in lines[at + 1 : at + 1 + len(devices)]:
        name, *cells = line.split()
        if len(cells) < len(devices):
            raise LabError(f"row {name} has {len(cells)} cells, and there are {len(devices)} devices.")
        between |= {(name, other): symbol for other, symbol in zip(devices, cells) if other != name}
        rest = cells[len(devices) :]
        if name.startswith("GPU"):
            cpus[name] = rest[0] if rest else ""
            numa[name] = rest[1] if has_numa and len(rest) > 1 else ""
    gpus = [name for name in devices if name.startswith("GPU")]
    return Topo(gpus, [name for name in devices if name not in gpus], between, cpus, sockets(gpus, numa, cpus))
    ### END SOLUTION


def to_topology(
    topo: Topo, nvlink: float = 25e9, pcie: float = 24e9, smp: float = 10e9, alpha: float = 0.0
) -> Topology:
    """Task 13.11. The link graph of the GPUs, rank r on the r-th GPU, by the rules above.

    Args:
        nvlink: bandwidth of one NVLink, one direction, bytes/s (25e9 on V100 to H100).
        pcie: of a GPU's PCIe link, one direction.
        smp: of the link between two sockets, one direction.
        alpha: latency of every link, seconds.
    """
    ### BEGIN SOLUTION 13.11 link graph from the matrix
    N = len(topo.gpus)
    links: dict[str, Link] = {}
    routes: dict[tuple[int, int], list[str]] = {}
    symbols = {(a, b): topo.between[topo.gpus[a], topo.gpus[b]] for a in range(N) for b in range(N) if a != b}
    switched = N > 2 and len(set(symbols.values())) == 1 and topo.between["GPU0", "GPU1"].startswith("NV")
    for (a, b), symbol in symbols.items():
        bandwidth = nvlink * int(symbol[2:]) if symbol.startswith("NV") else pcie
        if symbol.startswith("NV") and not switched:
            path = {f"{a}->{b}": bandwidth}
        else:
            path = {f"{a}.up": bandwidth, f"{b}.down": bandwidth}
            if symbol == "SYS":
                here, there = topo.socket[topo.gpus[a]], topo.socket[topo.gpus[b]]
                path = {f"{a}.up": pcie, f"socket{here}->socket{there}": smp, f"{b}.down": pcie}
        links |= {name: Link(speed, alpha) for name, speed in path.items()}
        routes[a, b] = list(path)
    return Topology(N, links, routes, f"{N} GPUs as nvidia-smi sees them")
    ### END SOLUTION

"""Three machines as link graphs: what `nvidia-smi topo -m` prints for them stands in data/, with the sources.

A test holds each of them against the parser of task 13.11.
"""

from __future__ import annotations

from pathlib import Path

from labkit.comm.topology import Link, Topology

DATA = Path(__file__).parents[1] / "data"
Routes = dict[tuple[int, int], list[str]]

NVLINK, PCIE, SMP = 25e9, 24e9, 10e9  # one NVLink; a GPU's PCIe 4.0 x16; between two sockets. Bytes/s, one direction

# Hybrid cube mesh: (GPU, GPU): how many NVLinks they share. Every GPU has six. Two lines of cables, not sixteen:
# fmt: off
CUBE_MESH = {(0, 1): 2, (0, 2): 2, (0, 3): 1, (0, 4): 1, (1, 2): 1, (1, 3): 2, (1, 5): 1, (2, 3): 1,
             (2, 6): 2, (3, 7): 2, (4, 5): 2, (4, 6): 2, (4, 7): 1, (5, 6): 1, (5, 7): 2, (6, 7): 1}
# fmt: on


def cube_mesh(alpha: float = 0.0) -> Topology:
    """8 V100, cables of one or two NVLinks; pairs without a cable go over PCIe and the link between the sockets."""
    links: dict[str, Link] = {}
    routes: Routes = {}
    for a in range(8):
        for b in (b for b in range(8) if b != a):
            count = CUBE_MESH.get((min(a, b), max(a, b)))
            path = {f"{a}->{b}": NVLINK * count} if count else _over_pcie(a, b)
            links |= {name: Link(speed, alpha) for name, speed in path.items()}
            routes[a, b] = list(path)
    return Topology(8, links, routes, "8 V100 in a hybrid cube mesh")


def two_sockets(alpha: float = 0.0) -> Topology:
    """8 RTX 4090, four at each socket behind a PCIe switch, no NVLink."""
    links: dict[str, Link] = {}
    routes: Routes = {}
    for a in range(8):
        for b in (b for b in range(8) if b != a):
            path = _over_pcie(a, b)
            links |= {name: Link(speed, alpha) for name, speed in path.items()}
            routes[a, b] = list(path)
    return Topology(8, links, routes, "8 GPUs in two sockets")


def nvswitch(alpha: float = 0.0) -> Topology:
    """8 H100 on NVSwitch: 18 NVLinks from each GPU to the switch."""
    return Topology.switch(8, 2 * alpha, 18 * NVLINK)


def _over_pcie(a: int, b: int) -> dict[str, float]:
    here, there = a // 4, b // 4
    across = {} if here == there else {f"socket{here}->socket{there}": SMP}
    return {f"{a}.up": PCIE, **across, f"{b}.down": PCIE}

"""What a message takes on this machine: the formulas of links.py turned round, for `lab plan --calibrate`."""

import os
import statistics
import time
from typing import Any, NamedTuple

G = 1e9


class Link(NamedTuple):
    """GB/s of one direction a rank, and seconds of a ring's step."""

    gbs: float
    alpha: float


def time_gather(group: Any, nbytes: int, rounds: int) -> float:
    """Return the median seconds of an all-gather whose result has about `nbytes`, the slowest rank's in each round."""
    import torch

    part = torch.randn(max(1, nbytes // 4 // group.size), device=group.device)
    out = torch.empty(part.numel() * group.size, device=group.device)
    wait = torch.cuda.synchronize if group.device.type == "cuda" else lambda: None
    laps = []
    for _ in range(3 + rounds):
        group.barrier()
        wait()
        begin = time.perf_counter()
        group.all_gather(part, out=out)
        wait()
        laps.append(time.perf_counter() - begin)
    slowest = group.all_reduce(torch.tensor(laps[3:], dtype=torch.float64, device=group.device), op="max")
    return float(slowest.median())


def measure_link(group: Any, message: int) -> list[float]:
    """Measure one group whose ranks are alike: [gbs, alpha] of its `Link`."""
    N = group.size
    small, large = time_gather(group, 4096, 20), time_gather(group, message, 8)
    return [(N - 1) / N * message / max(large - small, 1e-9) / G, small / (N - 1)]


def links_of_rank(group: Any, per_node: int, message: int) -> list[list[float] | None]:
    """Measure [within a machine, between machines] on this rank; None where there is one rank, or one machine."""
    size = group.size
    nodes = [list(range(i, i + per_node)) for i in range(0, size, per_node)]
    alike = [list(range(i, size, per_node)) for i in range(per_node)]
    within = measure_link(group.split(nodes, "node"), message) if per_node > 1 else None
    between = measure_link(group.split(alike, "alike"), message) if size > per_node else None
    return [within, between]


def measure_links(device: str, message: int) -> tuple[int, Link | None, Link | None]:
    """(ranks of a machine, the link within, the link between), over all GPUs, two CPU processes, or torchrun's ranks."""
    import torch

    from labkit.comm.ranks import of_this_machine, run_ranks, under_torchrun

    size = here = torch.cuda.device_count() if device == "cuda" else 2
    if under_torchrun():
        size = int(os.environ["WORLD_SIZE"])
        here = of_this_machine(size)
    if size < 2:
        return 1, None, None
    ranks = None if under_torchrun() else size
    each = run_ranks(links_of_rank, here, message, size=ranks, timeout=120, device=device)
    slowest = [
        None if which[0] is None else Link(min(one[0] for one in which), statistics.median(one[1] for one in which))
        for which in zip(*each)
    ]
    return here, slowest[0], slowest[1]

r"""What connects the ranks: directed links, and the way from each rank to each other rank.

A link is one direction of a cable. A message crosses all links on `path(a, b)` at once (cut-through switching) and
needs, if nothing else is in the way,

    sum of their latencies + bytes / their smallest bandwidth      =  alpha + n * beta     (Hockney's model)

Builders, from simple to real; `alpha` is what a message feels end to end:

    switch(n, alpha, B)        0 ==\               each rank has a link up to, and a link down from, a switch that is
                               1 ===[ ]           never the bottleneck: an NVSwitch node
                               2 ==/
    shared_root(n, alpha, B)   0 --.              all traffic crosses one and the same link: PCIe cards below one root
                               1 ---)== root ==   port, or ranks of one laptop that share its memory bus
                               2 --'
    two_level(m, p, ...)       [node]==[node]     m nodes of p ranks: a switch in each node, one network card a node
    from_bandwidth(matrix)     0 === 1            a cable of its own between each two ranks, as a measured matrix says
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError


@dataclass(frozen=True)
class Link:
    """One direction of a cable: `bandwidth` in bytes/s, `latency` in seconds."""

    bandwidth: float
    latency: float = 0.0


class Topology:
    """`size` ranks, directed `links` by name, and `routes[(a, b)]`, link names in order. LabError: no link, no range."""

    def __init__(
        self, size: int, links: dict[str, Link], routes: Mapping[tuple[int, int], Sequence[str]], name: str = "topology"
    ) -> None:
        if size < 1:
            raise LabError(f"a topology needs at least 1 rank, not {size}.")
        for label, link in links.items():
            if not (0 < link.bandwidth < math.inf and 0 <= link.latency < math.inf):
                raise LabError(f"link {label} needs a bandwidth above 0 B/s and a latency of at least 0 s, not {link}.")
        for (a, b), path in routes.items():
            if not (0 <= a < size and 0 <= b < size):
                raise LabError(f"the route {a} -> {b} leaves the {size} ranks of this topology.")
            if strange := [label for label in path if label not in links]:
                raise LabError(f"the route {a} -> {b} names the link {strange[0]!r}, which does not exist.")
        self.size, self.name = size, name
        self.links = dict(links)
        self.routes = {pair: tuple(path) for pair, path in routes.items() if pair[0] != pair[1]}

    def connected(self, a: int, b: int) -> bool:
        """Whether a message can go from rank a to rank b."""
        return a == b or (a, b) in self.routes

    def path(self, a: int, b: int) -> tuple[str, ...]:
        """The names of the links from rank a to rank b, in order; () to itself. LabError if there is no way."""
        if a == b and 0 <= a < self.size:
            return ()
        if (a, b) not in self.routes:
            raise LabError(f"{self.name} has no way from rank {a} to rank {b}; it has {self.size} ranks.")
        return self.routes[a, b]

    def alpha(self, a: int, b: int) -> float:
        """Latency from a to b in seconds: the sum over the path."""
        return sum(self.links[label].latency for label in self.path(a, b))

    def bandwidth(self, a: int, b: int) -> float:
        """Bytes/s from a to b if nothing else runs: the smallest on the path; infinite from a rank to itself."""
        return min((self.links[label].bandwidth for label in self.path(a, b)), default=math.inf)

    def seconds(self, a: int, b: int, size: float) -> float:
        """Time of one message of `size` bytes from a to b if nothing else runs."""
        return self.alpha(a, b) + size / self.bandwidth(a, b)

    def __repr__(self) -> str:
        return f"Topology({self.name}: {self.size} ranks, {len(self.links)} links)"

    # ---- builders

    @classmethod
    def switch(cls, n: int, alpha: float, bandwidth: float) -> "Topology":
        """`alpha` s from rank to rank, `bandwidth` B/s for each rank each way."""
        links = {f"{r}.{way}": Link(bandwidth, alpha / 2) for r in range(n) for way in ("up", "down")}
        routes = {(a, b): (f"{a}.up", f"{b}.down") for a, b in _pairs(n)}
        return cls(n, links, routes, f"a switch for {n} ranks")

    @classmethod
    def shared_root(cls, n: int, alpha: float, bandwidth: float, root_bandwidth: float | None = None) -> "Topology":
        """`alpha` s from rank to rank, `bandwidth` B/s to the root, which has `root_bandwidth` (default: the same)."""
        links = {f"{r}.{way}": Link(bandwidth, alpha / 4) for r in range(n) for way in ("up", "down")}
        links["root"] = Link(bandwidth if root_bandwidth is None else root_bandwidth, alpha / 2)
        routes = {(a, b): (f"{a}.up", "root", f"{b}.down") for a, b in _pairs(n)}
        return cls(n, links, routes, f"one shared root link for {n} ranks")

    @classmethod
    def two_level(
        cls,
        nodes: int,
        per_node: int,
        *,
        inner_alpha: float,
        inner_bandwidth: float,
        outer_alpha: float,
        outer_bandwidth: float,
    ) -> "Topology":
        """`nodes` machines with `per_node` ranks each; rank r is on node r // per_node.

        Inside: `inner_alpha` s and `inner_bandwidth` B/s a rank each way. Between them a node's ranks share one network
        card of `outer_bandwidth` B/s each way; a message takes `inner_alpha + outer_alpha` s.
        """
        n = nodes * per_node
        links = {f"{r}.{way}": Link(inner_bandwidth, inner_alpha / 2) for r in range(n) for way in ("up", "down")}
        for k in range(nodes):
            links |= {f"node{k}.{way}": Link(outer_bandwidth, outer_alpha / 2) for way in ("out", "in")}
        routes = {}
        for a, b in _pairs(n):
            k, m = a // per_node, b // per_node
            across = () if k == m else (f"node{k}.out", f"node{m}.in")
            routes[a, b] = (f"{a}.up", *across, f"{b}.down")
        return cls(n, links, routes, f"{nodes} nodes of {per_node} ranks")

    @classmethod
    def from_bandwidth(cls, matrix: Any, alpha: float = 0.0) -> "Topology":
        """matrix[a][b]: B/s from a to b (nested lists, numpy or torch), 0: no cable. alpha: every link's, s."""
        rows = matrix.tolist() if hasattr(matrix, "tolist") else [list(row) for row in matrix]
        n = len(rows)
        if any(len(row) != n for row in rows):
            raise LabError(f"a bandwidth matrix is square: {n} rows, but rows of {sorted({len(row) for row in rows})}.")
        links, routes = {}, {}
        for a, b in _pairs(n):
            if not 0 <= rows[a][b] < math.inf:
                raise LabError(
                    f"the bandwidth from rank {a} to rank {b} is {rows[a][b]}: it must be finite, and at least 0 B/s."
                )
            if rows[a][b] > 0:
                links[f"{a}->{b}"] = Link(float(rows[a][b]), alpha)
                routes[a, b] = (f"{a}->{b}",)
        return cls(n, links, routes, f"a graph of {n} ranks")


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(n) for b in range(n) if a != b]

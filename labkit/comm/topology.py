"""What connects the ranks: directed links, and the way from each rank to each other rank.

A message crosses all links on `path(a, b)` at once (cut-through switching) and needs, if nothing else is in the way,

    sum of their latencies + bytes / their smallest bandwidth      =  alpha + n * beta     (Hockney's model)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
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
        self.routes = {pair: tuple(path) for pair, path in routes.items()}

    def connected(self, a: int, b: int) -> bool:
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
        return self.alpha(a, b) + size / self.bandwidth(a, b)

    def __repr__(self) -> str:
        return f"Topology({self.name}: {self.size} ranks, {len(self.links)} links)"

    @classmethod
    def switch(cls, n: int, alpha: float, bandwidth: float) -> "Topology":
        """Each rank has a link up to a switch and one down from it: `alpha` s from rank to rank, `bandwidth` B/s each."""
        links = {f"{r}.{way}": Link(bandwidth, alpha / 2) for r in range(n) for way in ("up", "down")}
        routes = {(a, b): (f"{a}.up", f"{b}.down") for a, b in permutations(range(n), 2)}
        return cls(n, links, routes, f"a switch for {n} ranks")

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
        """`nodes` switches of `per_node` ranks each; rank r is on node r // per_node. Alphas in s, bandwidths in B/s.

        Between nodes a node's ranks share one network card; a message takes `inner_alpha + outer_alpha`."""
        n = nodes * per_node
        links = {f"{r}.{way}": Link(inner_bandwidth, inner_alpha / 2) for r in range(n) for way in ("up", "down")}
        for k in range(nodes):
            links |= {f"node{k}.{way}": Link(outer_bandwidth, outer_alpha / 2) for way in ("out", "in")}
        routes = {}
        for a, b in permutations(range(n), 2):
            k, m = a // per_node, b // per_node
            across = () if k == m else (f"node{k}.out", f"node{m}.in")
            routes[a, b] = (f"{a}.up", *across, f"{b}.down")
        return cls(n, links, routes, f"{nodes} nodes of {per_node} ranks")

    @classmethod
    def from_bandwidth(cls, matrix: Any, alpha: float = 0.0) -> "Topology":
        """A cable between each two ranks; matrix[a][b]: its B/s (lists, numpy or torch), 0: none. alpha: each one's, s."""
        rows = [[float(bandwidth) for bandwidth in row] for row in matrix]
        n = len(rows)
        if any(len(row) != n for row in rows):
            raise LabError(f"a bandwidth matrix is square: {n} rows, but rows of {sorted({len(row) for row in rows})}.")
        links, routes = {}, {}
        for a, b in permutations(range(n), 2):
            if rows[a][b] != 0:
                links[f"{a}->{b}"] = Link(rows[a][b], alpha)
                routes[a, b] = (f"{a}->{b}",)
        return cls(n, links, routes, f"a graph of {n} ranks")

"""What a collective sends on the virtual wire: one stated algorithm each, and its cost.

Each is a ring on the N ranks of its group in their order; n is what the ledger counts, in pieces of ceil(n/N) bytes:

    all_gather        ring: N-1 steps, in each a piece to the right and one from the left     (N-1) (alpha + n/N beta)
    reduce_scatter    the same ring                                                           (N-1) (alpha + n/N beta)
    all_reduce        a reduce_scatter, then an all_gather                                  2 (N-1) (alpha + n/N beta)
    broadcast         pipelined: N pieces from src to the right, from rank to rank          2 (N-1) (alpha + n/N beta)
    barrier, split    bring the ranks together, and cost nothing

The costs hold on an idle switch, if all ranks come at the same time (Patarasuk and Yuan 2009).
"""

from collections.abc import Iterable

from labkit.comm.ledger import Event, GroupId, Ledger

Part = tuple[str, int, int]  # "send" or "recv", with which rank of the whole run, how many bytes
REPLAYED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def steps(event: Event, group: GroupId, rank: int) -> list[list[Part]]:
    """The steps of one rank's part in a collective. The parts of a step run together, the steps one after another."""
    N, at = len(group.ranks), group.ranks.index(rank)
    if N == 1:
        return []
    piece = -(-event.bytes // N)
    right, left = ("send", group.ranks[(at + 1) % N], piece), ("recv", group.ranks[at - 1], piece)
    if event.kind != "broadcast":
        return [[right, left]] * ((N - 1) * (2 if event.kind == "all_reduce" else 1))
    assert event.peer is not None
    distance = (at - group.ranks.index(event.peer)) % N  # from the source
    if distance == 0:
        return [[right]] * N
    if distance == N - 1:
        return [[left]] * N
    return [[left], *[[right, left]] * (N - 1), [right]]


def ring_bytes(ledger: Ledger, events: Iterable[Event] | None = None) -> int:
    """Bytes that the ledger's rank sends in these events (default: all): messages as they are, collectives by the ring."""
    total = 0
    for event in ledger.events if events is None else events:
        if event.kind == "send":
            total += event.bytes
        elif event.kind in REPLAYED:
            parts = steps(event, ledger.group_of(event), ledger.rank)
            total += sum(size for step in parts for kind, _, size in step if kind == "send")
    return total

"""Little programs as ledgers, for the tests of the virtual wire."""

import pytest

from labkit.comm.ledger import Ledger
from labkit.comm.topology import Topology
from labkit.comm.wire import replay
from labkit.errors import LabError

US = 1e-6


def switch(n, alpha=2.0):
    """alpha us for a message, and 1000 bytes per us."""
    return Topology.switch(n, alpha * US, 1e9)


def programs(*ranks, groups=()):
    """The ledgers of little programs. A step is ("send", peer, bytes), ("recv", peer, bytes), ("isend", peer, bytes,
    name), ("irecv", peer, bytes, name), ("wait", name), a list of sends and receives in one batch, ("compute", us), or
    a collective: ("all_reduce", bytes). The last two may end with {more for Ledger.begin}; with a "name" a collective
    is posted."""
    ledgers = []
    for rank, steps in enumerate(ranks):
        ledger, handles = Ledger(rank, len(ranks), start=0.0), {}
        for group in groups:
            if rank in group.ranks:
                ledger.join(group)
        for line, step in enumerate(steps, start=1):
            where, batch = f"rank{rank}.py:{line}", None
            for kind, *rest in step if isinstance(step, list) else [step]:
                if kind == "wait":
                    ledger.begin("wait", of=handles[rest[0]].index, where=where)
                elif kind in ("isend", "irecv"):
                    handles[rest[2]] = ledger.begin(kind[1:], rest[0], rest[1], blocking=False, where=where)
                elif kind in ("send", "recv"):
                    batch = ledger.begin(kind, rest[0], rest[1], batch=batch, where=where).batch
                else:
                    size, more = rest[0] if rest else 0, {"where": where, **dict(*rest[1:])}
                    if kind == "compute":
                        ledger.begin(kind, blocking=False, seconds=size * US, **more)
                    else:
                        name = more.pop("name", None)
                        handles[name] = ledger.begin(kind, bytes=size, blocking=name is None, **more)
        ledgers.append(ledger)
    return ledgers


def refused(ledgers, topology=None):
    """What `replay` says of these."""
    with pytest.raises(LabError) as caught:
        replay(ledgers, topology or switch(len(ledgers)))
    assert "\n" not in str(caught.value)
    return str(caught.value)

"""The ledger holds what replay needs: program order, peers, bytes, batches, waits, lines."""

import inspect
import json
import os
from itertools import pairwise

import pytest
import torch

from labkit.comm import ledger as sink
from labkit.comm.group import Recv, Send
from labkit.comm.ledger import GroupId, Ledger, read_sink


def program(group):
    x, right, left = torch.ones(3, 2), (group.rank + 1) % group.size, (group.rank - 1) % group.size
    group.sendrecv(x, dst=right, src=left)  # line 1
    sending = group.isend(x[:1].bfloat16(), right)  # line 2
    receiving = group.irecv(left, like=x[:1].bfloat16())  # line 3
    group.batch([Send(x[0], right), Recv(left, like=x[0]), Send(x[1], right), Recv(left, like=x[0])])  # line 4
    receiving.wait()  # line 5
    sending.wait()  # line 6
    group.all_reduce(x, op="max")  # line 7
    handle = group.all_gather(x, async_op=True)  # line 8
    handle.wait()  # line 9
    handle.wait()
    group.reduce_scatter(torch.ones(group.size * 2))  # line 10
    group.broadcast(x, src=1)  # line 11
    group.barrier()  # line 12
    group.sendrecv(x, dst=right, src=left)  # line 13


def line(n):
    lines, start = inspect.getsourcelines(program)
    return next(start + i for i, text in enumerate(lines) if text.rstrip().endswith(f"# line {n}"))


def test_program_order_and_fields(run):
    ledger, N = run(program, size=3).ledgers[0], 3
    got = [
        (e.index, e.kind, e.peer, e.bytes, e.batch, e.blocking, e.of, e.seq, int(e.where.rpartition(":")[2]))
        for e in ledger.events
    ]
    assert got == [
        (0, "send", 1, 24, 0, True, None, 0, line(1)),
        (1, "recv", 2, 24, 0, True, None, 0, line(1)),
        (2, "send", 1, 4, 2, False, None, 1, line(2)),
        (3, "recv", 2, 4, 3, False, None, 1, line(3)),
        (4, "send", 1, 8, 4, True, None, 2, line(4)),
        (5, "recv", 2, 8, 4, True, None, 2, line(4)),
        (6, "send", 1, 8, 4, True, None, 3, line(4)),
        (7, "recv", 2, 8, 4, True, None, 3, line(4)),
        (8, "wait", 2, 0, None, True, 3, 0, line(5)),
        (9, "wait", 1, 0, None, True, 2, 0, line(6)),
        (10, "all_reduce", None, 24, 10, True, None, 0, line(7)),
        (11, "all_gather", None, 24 * N, 11, False, None, 1, line(8)),
        (12, "wait", None, 0, None, True, 11, 0, line(9)),
        (13, "reduce_scatter", None, 8 * N, 13, True, None, 2, line(10)),
        (14, "broadcast", 1, 24, 14, True, None, 3, line(11)),
        (15, "barrier", None, 0, 15, True, None, 4, line(12)),
        (16, "send", 1, 24, 16, True, None, 4, line(13)),
        (17, "recv", 2, 24, 16, True, None, 4, line(13)),
    ]
    assert all(e.where.split(":")[0].endswith("test_ledger.py") for e in ledger.events)
    e = ledger.events
    assert (e[2].dtype, e[2].shape, e[10].op, e[11].shape) == ("bfloat16", (1, 2), "max", (3, 2))
    # Times: everything ended after it began; a posted event ends when its wait does; blocking calls follow one another.
    assert all(x.end is not None and x.end >= x.begin >= 0 for x in e)
    assert e[3].end == e[8].end and e[2].end == e[9].end and e[11].end == e[12].end
    assert all(b.begin >= a.begin for a, b in pairwise(e)) and e[16].begin >= e[15].end
    assert (ledger.sent_bytes, ledger.received_bytes, ledger.steps) == (68, 68, 4)
    assert ledger.count("all_reduce", "broadcast") == 2
    assert not ledger.gaps and ledger.dropped == 0 and (ledger.rank, ledger.size) == (0, 3)


def quiet(group):
    x, other = torch.ones(2), 1 - group.rank
    group.sendrecv(x, other, other)
    with group.ledger.off():
        group.sendrecv(x, other, other)
        group.isend(x, other).wait() if group.rank else group.recv(other, like=x)
        handle = group.all_reduce(x, async_op=True)
    handle.wait()
    group.sendrecv(x, other, other)
    return group.ledger.enabled


def test_it_can_be_switched_off(run):
    results = run(quiet)
    assert results == [True, True]
    for ledger in results.ledgers:
        assert [e.kind for e in ledger.events] == ["send", "recv", "send", "recv"] and ledger.gaps


def test_old_events_are_dropped_and_still_counted():
    ledger = Ledger(0, 2, keep=10)
    waiting = ledger.begin("barrier")  # still open: the autopsy needs it, however old
    for _ in range(100):
        batch = None
        for kind in ("send", "recv"):
            event = ledger.begin(kind, 1, 8, batch=batch)
            batch = event.batch
            ledger.finish(event)
    assert (ledger.sent_bytes, ledger.received_bytes, ledger.steps) == (800, 800, 100)
    assert len(ledger.events) <= 11 and ledger.dropped + len(ledger.events) == 201
    assert waiting in ledger.open() and ledger.events[-1].seq == 99 and ledger.events[-1].index == 200
    back = Ledger.from_json(json.dumps(ledger.to_json()))
    assert (back.sent_bytes, back.steps, back.dropped) == (800, 100, ledger.dropped)
    assert (back.events, back.rank, back.size) == (ledger.events, 0, 2)


def fill(ledger, n):
    for i in range(n):
        event = ledger.begin("send", 1, i, dtype="float32", shape=(i,), where=f'cell "{i}" \\ é:7')
        if i != n - 1:
            ledger.finish(event)
    return ledger


def test_sink_holds_what_the_ledger_holds(tmp_path):
    path = str(tmp_path / "sink")
    ledger = fill(Ledger(0, 2, sink=path), 5)
    back = read_sink(path, 0, 2)
    assert back.events == ledger.events and back.events[-1].end is None and not back.gaps
    with ledger.off():
        assert read_sink(path, 0, 2).gaps
    with open(path, "rb") as file:
        whole = file.read()
    for cut in range(1, 40):  # killed in the middle of a record
        torn = tmp_path / "torn"
        torn.write_bytes(whole + whole[:cut])
        assert read_sink(str(torn), 0, 2).events[:5] == ledger.events
    ledger.close()
    fill(ledger, 2)  # a closed sink is silent
    assert len(read_sink(path, 0, 2).events) == 5
    assert read_sink(str(tmp_path / "never written"), 0, 2).events == []


def test_sink_does_not_grow_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(sink, "LIMIT", 50_000)
    path = str(tmp_path / "sink")
    ledger = Ledger(0, 2, sink=path)
    waiting = ledger.begin("barrier")
    fill(ledger, 3000)
    assert os.path.getsize(path) < 100_000
    back = read_sink(path, 0, 2)
    assert waiting in back.events and back.events[-1] == ledger.events[-1] and back.dropped > 0


def test_sink_and_json_hold_groups_and_spans(tmp_path, monkeypatch):
    path = str(tmp_path / "sink")
    ledger = Ledger(2, 4, sink=path)
    ledger.join(GroupId("tp", (2, 3)))
    inside = ledger.begin("all_reduce", bytes=8, group="tp")
    span = ledger.begin("compute", blocking=False, label="layer 3", seconds=2e-3)
    assert (inside.seq, span.seq, ledger.begin("barrier").seq, ledger.begin("barrier", group="tp").seq) == (0, 0, 0, 1)
    assert span not in ledger.open() and inside in ledger.open()
    for back in (read_sink(path, 2, 4), Ledger.from_json(json.dumps(ledger.to_json()))):
        assert back.events == ledger.events and back.groups == {"world": (0, 1, 2, 3), "tp": (2, 3)}
        assert back.group_of(back.events[0]) == GroupId("tp", (2, 3))
    monkeypatch.setattr(sink, "LIMIT", 50_000)
    fill(ledger, 3000)
    assert read_sink(path, 2, 4).groups == ledger.groups  # also in a file that was started anew


def test_full_disk_does_not_fail_the_run(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    ledger = fill(Ledger(0, 2, sink="/dev/full"), 3)
    assert len(ledger.events) == 3

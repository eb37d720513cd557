"""Attacks on the broker: what comes out of a rank's only socket is bytes, and these are chosen by the student."""

import json
import os
import socket
import struct
import time

import torch

from labkit.checks import values

LINK = 3


def _link():
    return socket.socket(fileno=os.dup(LINK))


def _frame(kind, head, body=b"", says=None):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("!4sIQ", kind, len(text), len(body) if says is None else says) + text + body


def _post(*ops, body=b"", blocking=False):
    return _frame(b"post", {"group": 0, "ops": [list(op) for op in ops], "blocking": blocking, "where": "x.py:1"}, body)


def _coll(kind="all_reduce", op="sum", src=None, dtype="float32", shape=(1,), body=bytes(4), **more):
    head = {"group": 0, "kind": kind, "op": op, "src": src, "dtype": dtype, "shape": list(shape)}
    return _frame(b"coll", {**head, "blocking": True, "where": "x.py:1", **more}, body)


def _part(parts, name="tp"):
    return _frame(b"part", {"group": 0, "name": name, "parts": parts, "where": "x.py:1"})


def _span(label="work", seconds=None):
    return _frame(b"span", {"label": label, "seconds": seconds, "where": "x.py:1"})


def _answer(value, args=()):
    return values.pack(("ok", value, args))


def _raw(tree, blob=b""):
    text = json.dumps(tree).encode() if not isinstance(tree, bytes) else tree
    return len(text).to_bytes(8, "little") + text + blob


# Whole numbers this far apart have one hash in Python: a dict of n such keys takes n * n / 2 comparisons. 30,000 are
# minutes; so many as here are seconds.
COLLIDING = [[{"int": str(n * ((1 << 61) - 1))}, None] for n in range(1, 8_001)]
FRAMES = {
    "an unknown kind": _frame(b"hack", {}),
    "bytes of no alphabet": _frame(b"\xff\xfe\0\1", {}),
    "a head that is no JSON": _frame(b"post", b"{'ops'"),
    "a head without end": struct.pack("!4sIQ", b"post", 0xFFFFFFFF, 0),
    "a body without end": struct.pack("!4sIQ", b"post", 2, 1 << 62),
    "nesting without end": _frame(b"post", b'{"ops":' + b"[" * 30000 + b"]" * 30000 + b"}"),
    "a number of 60,000 digits": _frame(b"wait", b'{"of": ' + b"9" * 60000 + b"}"),
    "nothing": _post(),
    "to itself": _post(["send", 0, "uint8", [1]], body=b"x"),
    "to rank -1": _post(["send", -1, "uint8", [1]], body=b"x"),
    "to rank 7": _post(["recv", 7, "uint8", [1]]),
    "to rank true": _post(["recv", True, "uint8", [1]]),
    "a negative shape": _post(["recv", 1, "uint8", [-1]]),
    "a shape of 17 dimensions": _post(["recv", 1, "uint8", [1] * 17]),
    "a shape that overflows": _post(["recv", 1, "float64", [(1 << 40) - 1] * 16]),
    "a shape of nothing that overflows": _post(["recv", 1, "float64", [0] + [(1 << 40) - 1] * 15]),
    "a dtype that is a function": _post(["recv", 1, "load", [1]]),
    "a quantized dtype": _post(["recv", 1, "quint8", [4]]),
    "less than it says": _post(["send", 1, "float64", [100]], body=b"x"),
    "more than it says": _post(["send", 1, "uint8", [1]], body=b"xyz"),
    "a wait for nothing": _frame(b"wait", {"of": 5, "where": ""}),
    "a wait for before": _frame(b"wait", {"of": -1, "where": ""}),
    "an unknown collective": _coll("all_to_all"),
    "an unknown operation": _coll(op="pow"),
    "a sum of float8": _coll(dtype="float8_e4m3fn", shape=(4,)),
    "a sum of bits": _coll(dtype="bits8", shape=(4,)),
    "a source that is none": _coll("broadcast", op=None, src=9),
    "a gather of a scalar": _coll("all_gather", op=None, shape=()),
    "a scatter of a scalar": _coll("reduce_scatter", shape=()),
    "a place that is no text": _coll(where=7),
    "no group": _frame(b"coll", {"kind": "barrier", "op": None, "src": None, "blocking": True, "where": "x.py:1"}),
    "a group that is none": _coll(group=1),
    "a group that is true": _coll(group=True),
    "a split of nobody": _part([[]]),
    "a split that takes a rank twice": _part([[0, 1], [1]]),
    "a split that takes rank 7": _part([[0, 7]]),
    "a split that takes rank true": _part([[False, True]]),
    "a split out of order": _part([[1, 0]]),
    "a split without end": _part([[0]] * 9000),
    "a split that is a number": _part(7),
    "a split named like all ranks": _part([[0]], name="world"),
    "a split whose name commands a terminal": _part([[0]], name="a\x1b[2J"),
    "a split whose name is no text": _part([[0]], name=["tp"]),
    "the end of no span": _frame(b"over", {}),
    "a span of no length": _span(seconds=float("nan")),
    "a span that ends before it begins": _span(seconds=-1.0),
    "a span without end": _span(seconds=1e300),
    "a span of text": _span(seconds="1"),
    "a span in a span": _span() + _span(),
    "a span without a label": _span(label=None),
    "a failure of no kind": _frame(b"fail", {"kind": "pardoned", "text": "", "traceback": "", "stack": []}),
    "a failure without text": _frame(b"fail", {"kind": "raised"}),
    "a stack of junk": _frame(b"fail", {"kind": "raised", "text": "", "traceback": "", "stack": [[1, 2]]}),
}
ANSWERS = {
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "lists nested deep": _raw(b'{"list":[' * 500 + b"]}" * 500),
    "lists by the million": _raw(b'{"list":[' + b",".join([b'{"list":[]}'] * 600_000) + b"]}"),
    "a negative shape": _raw({"array": ["uint8", [-1]]}),
    "a shape that no tensor has": _raw({"tuple": ["ok", {"array": ["uint8", [0, 1 << 62, 9]]}, {"tuple": []}]}),
    "a shape of 65 dimensions": _raw({"tuple": ["ok", {"array": ["uint8", [1] * 65]}, {"tuple": []}]}, b"x"),
    "a key that cannot be one": _raw({"tuple": ["ok", {"dict": [[{"list": []}, None]]}, {"tuple": []}]}),
    "one tensor's memory for many": _raw(
        {"tuple": ["ok", {"list": [{"array": ["uint8", [1 << 20]]}] * 50_000}, {"tuple": []}]}, bytes(1 << 20)
    ),
    "keys that collide": _raw({"tuple": ["ok", {"dict": COLLIDING}, {"tuple": []}]}),
    "bytes after the end": _answer(1) + b"more",
    "no attempt": values.pack(("unfinished", "\x1b]0;mine\x07" + "x" * 10_000)),
    "an error that commands a terminal": values.pack(("raised", "\x1b[2J\u202e" + "x" * 100_000)),
}


def frame(group, which):
    """Send bytes that break the rules, then wait what happens."""
    link = _link()
    if group.rank == 0:
        link.sendall(FRAMES[which])
    time.sleep(10)
    return "unnoticed"


def answer(group, which):
    """Forge the answer frame."""
    if group.rank == 0:
        _link().sendall(_frame(b"done", {}, ANSWERS[which]))
        time.sleep(10)
    return "an honest rank's"


def hang_up(group, half):
    """Close the connection, in the middle of a message or between two."""
    link = _link()
    link.sendall(FRAMES["more than it says"][: 20 if half else 0])
    link.shutdown(socket.SHUT_RDWR)
    time.sleep(10)


def speak_twice(group, value):
    """An answer, and then another one."""
    link = _link()
    link.sendall(_frame(b"done", {}, _answer(0)) + _frame(b"done", {}, _answer(value)))
    return value


def never_fetch(group, count):
    """Let the broker hold results: rank 0 sends, rank 1 asks for them and never reads."""
    link, size = _link(), 1 << 20
    for _ in range(count):
        if group.rank == 0:
            group.send(torch.zeros(size, dtype=torch.uint8), 1)
        else:
            link.sendall(_post(["recv", 0, "uint8", [size]]))
            time.sleep(0.02)  # one after another: the sender is there already, and each is complete at once
    return "done"


def flood(group, count):
    """Sends that nobody will ever receive."""
    for _ in range(count):
        group.isend(torch.zeros(1), (group.rank + 1) % group.size)
    return "done"


def slowly(group):
    """A message that comes byte by byte, for ever."""
    link = _link()
    for byte in _frame(b"post", {"group": 0, "ops": []}, b"", says=1 << 20):
        link.sendall(bytes([byte]))
        time.sleep(0.1)
    time.sleep(20)

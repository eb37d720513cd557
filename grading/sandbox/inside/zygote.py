"""The fork server of a submission's sandbox: process 1 of our code in there. It imports torch once and forks ranks.

It never runs a student's code and never computes; its orders come over one socket (labkit.comm.forkserver). A rank is
process 1 of a process namespace of its own, so it sees nobody but what it starts itself; and when it dies the kernel
kills everything in there: no daemon outlives its call.

Forking is most of what a good submission costs, so it is kept cheap: the zygote's memory lies in huge pages (a fork
copies page tables, not pages), a rank is made by one clone() with all its namespaces, and what it asks malloc for does
not lie in pages that it shares.
"""

import ctypes
import gc
import importlib
import json
import logging
import os
import pkgutil
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from labkit_inside import jail, rank  # type: ignore[import-not-found]  # noqa: F401  this folder's name in there

from labkit.checks import remote, values
from labkit.comm import forkserver
from labkit.comm.group import Group
from labkit.comm.ledger import Ledger
from labkit.comm.link import BrokerTransport, frame_head, raw


def main() -> None:
    gc.disable()  # what is imported stays: to look at all of it again and again took a seventh of the start
    link = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    _become(settings["uid"], "users" not in settings["off"])
    for name in settings["import"]:
        importlib.import_module(name)
    for name in settings["uses"]:
        with suppress(ImportError):  # a rank that needs what is not there says so itself
            _import_all(name)
    import torch

    torch.set_num_threads(1)
    remote.settle()  # every rank is born so
    _warm(torch)
    jail.program, jail.clone = bytes.fromhex(settings["filter"]), settings["clone"]
    # At a fork logging makes every handler's lock anew, 38 of them, each in another page. Here nobody can hold one.
    logging._at_fork_reinit_lock_weakset.clear()  # type: ignore[attr-defined]  # private
    with open("/proc/self/statm") as file:
        jail.mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    off = frozenset(settings["off"])
    gc.enable()
    gc.collect()
    _fill_holes()
    forkserver.serve(link, by=partial(jail.fork, off), close="descriptors" not in off)


def _import_all(name: str) -> None:
    """A part of labkit that the week uses, with the modules of a package: a rank that imports the decoder would spend a
    second on pydantic and on torch's distributed tensors."""
    found = importlib.import_module(name)
    for module in pkgutil.iter_modules(getattr(found, "__path__", ()), f"{name}."):
        importlib.import_module(module.name)


def _warm(torch: Any) -> None:
    """Do once, on a few numbers, what each rank would do first: what torch then sets up, ranks are born with. (It reads
    /proc/cpuinfo for that, which a rank does not have.) With one thread this starts no other, and must not: a process
    with threads cannot be forked."""
    x, y = values.unpack(values.pack([torch.ones(8), torch.ones(8, dtype=torch.bfloat16)]))
    half = x.tensor_split(2)
    half[0].add_(half[1])
    torch.maximum(half[0], half[1], out=half[0])
    half[1].copy_(half[0]).div_(2)
    torch.stack([x, y.float(), torch.empty_like(x), x.clone()]).sum(0).tolist()
    y.add_(1).to(torch.float32)
    # A first backward imports some 500 modules of torch's: a third of a second, and a page copied for each few of them.
    z = x.clone().requires_grad_()
    torch.nn.functional.linear(z.reshape(2, 4), torch.ones(3, 4)).backward(torch.ones(2, 3))
    for _ in range(12):  # Python adapts a function's code in its first calls
        _warm_messages(torch.zeros(8))
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("torch has started threads: ranks cannot be forked")


def _warm_messages(x: Any) -> None:
    """Two messages of a rank, answered before they are asked. Python rewrites a function's code as it runs, to suit
    what it meets, and a rank in which that happens copies each page that is written to: so it has happened here."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        group = Group(BrokerTransport(0, 2, mine), Ledger(0, 2))
        left, right = x.tensor_split(2)
        for number in range(2):
            theirs.sendall(frame_head("comp", {"of": number}, len(raw(right))) + bytes(raw(right)))
        group.sendrecv(left, dst=1, src=1, out=right)
        group.sendrecv(left, dst=1, src=1)
        values.unpack(values.pack(((x,), {}, {"code": x.view(x.dtype)})))


class _Mallinfo(ctypes.Structure):
    """glibc's mallinfo2. `free`: bytes that malloc keeps for later; `top`: those of them at the heap's end."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "chunks", "small", "maps", "mapped", "peak", "small_free", "used", "free", "top")
    ]


def _fill_holes() -> None:
    """Take what malloc has free between the living, and never use it. A rank would be given these holes first: each is in
    a page that it shares, and to write there copies the page. What it gets now lies side by side, at the heap's end."""
    libc = ctypes.CDLL(None)
    try:
        mallinfo, malloc = libc.mallinfo2, libc.malloc
    except AttributeError:  # not glibc, or one older than 2.33
        return
    mallinfo.restype, malloc.restype, malloc.argtypes = _Mallinfo, ctypes.c_void_p, [ctypes.c_size_t]
    for size in (*(1 << power for power in range(16, 10, -1)), *range(1024, 0, -16)):
        before = mallinfo()
        while (holes := before.free - before.top) >= size:
            for _ in range(min(64, holes // size)):
                if malloc(size - 8) is None:  # 8: a block's own head
                    return
            after = mallinfo()
            if after.top != before.top:
                break  # there is no hole of this size any more: these came from the end
            before = after


def _become(uid: int | None, users: bool) -> None:
    """As root: another user for good, so that the kernel's limits on processes bind. Of all that root may it keeps only
    to make each rank a user of its own."""
    if uid is not None:
        if users:
            jail.keep_capabilities()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        if users:
            jail.become_able()
            jail.first_user = uid * jail.USERS
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which changing the user took away: /proc/self


if __name__ == "__main__":
    main()

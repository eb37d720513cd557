"""Process 1 of a submission's sandbox that runs our code: it imports torch once and forks ranks from there.

It never runs a student's code and never computes. Its orders come over one socket, as JSON, with the ranks'
descriptors beside them:

    {"fork": {...}}  + 3 descriptors a rank (its link to the broker, its output, its trace)  ->  {"forked": [ids]}
    {"end": [ids]}   kill these ranks and all they have started                              ->  {"ended": {id: status}}
                     the same comes when a rank ends by itself

A rank is process 1 of a process namespace of its own, so it sees nobody but what it starts itself; and when it dies the
kernel kills everything in there: no daemon outlives its case.

Forking is most of what a good submission costs, so it is kept cheap: the zygote's memory lies in huge pages (a fork
copies page tables, not pages), and a rank is made by one clone() with all its namespaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import logging
import os
import platform
import selectors
import signal
import socket
import sys
import time
from typing import Any

from labkit_inside import jail, rank

from labkit.checks import remote, values
from labkit.comm.group import Group
from labkit.comm.ledger import Ledger
from labkit.comm.link import BrokerTransport, frame_head, raw

LAST_WORD = 0.05  # seconds between "tell where you are" and the end


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    _become(settings["uid"])
    for name in settings["import"]:
        __import__(name)
    import torch

    torch.set_num_threads(1)
    remote.settle()  # every rank is born so
    _warm(torch)
    jail.program(platform.machine())
    # At a fork logging makes every handler's lock anew, 38 of them, each in another page. Here nobody can hold one.
    logging._at_fork_reinit_lock_weakset.clear()
    with open("/proc/self/statm") as file:
        settings["limits"]["mapped"] = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    gc.collect()
    gc.freeze()  # a rank's garbage collection must not touch, and so copy, every page it shares with us
    _tell(link, {"ready": os.getpid()})
    Zygote(link, settings).serve()


class Zygote:
    def __init__(self, link: socket.socket, settings: dict[str, Any]) -> None:
        self.link, self.off, self.limits = link, frozenset(settings["off"]), settings["limits"]
        self.ranks: dict[int, int] = {}  # pidfd -> pid
        self.doomed: dict[int, float] = {}  # pid -> when to kill it
        self.selector = selectors.DefaultSelector()
        self.selector.register(link, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select(LAST_WORD if self.doomed else None):
                if key.fileobj is self.link:
                    data, descriptors, _, _ = socket.recv_fds(self.link, 1 << 16, 256)
                    if not data:
                        return
                    for order in data.splitlines():
                        self._obey(json.loads(order), descriptors)
                else:
                    self._ended(key.fd)
            now = time.monotonic()
            for pid in [pid for pid, when in self.doomed.items() if when <= now]:
                del self.doomed[pid]
                os.kill(pid, signal.SIGKILL)

    def _obey(self, order: dict[str, Any], descriptors: list[int]) -> None:
        if "fork" in order:
            _tell(self.link, {"forked": [self._fork(descriptors[i : i + 3]) for i in range(0, len(descriptors), 3)]})
        alive = set(self.ranks.values())
        for pid in alive.intersection(order.get("end", ())):
            # With a last word: it writes down where it is.
            if order.get("ask"):
                os.kill(pid, signal.SIGUSR1)
                self.doomed[pid] = time.monotonic() + LAST_WORD
            else:
                os.kill(pid, signal.SIGKILL)

    def _fork(self, descriptors: list[int]) -> int:
        pid = jail.fork(self.off)
        if pid == 0:
            _no_return(born, descriptors, self.off, self.limits)
        for descriptor in descriptors:
            os.close(descriptor)
        watch = os.pidfd_open(pid)
        self.ranks[watch] = pid
        self.selector.register(watch, selectors.EVENT_READ)
        return pid

    def _ended(self, watch: int) -> None:
        pid = self.ranks.pop(watch)
        self.doomed.pop(pid, None)
        _, status = os.waitpid(pid, 0)
        self.selector.unregister(watch)
        os.close(watch)
        _tell(self.link, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _warm(torch) -> None:
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
    for _ in range(12):  # Python adapts a function's code in its first calls
        _warm_messages(torch.zeros(8))
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("torch has started threads: ranks cannot be forked")


def _warm_messages(x) -> None:
    """Two messages of a rank, answered before they are asked. Python rewrites a function's code as it runs, to suit what
    it meets, and a rank in which that happens copies each page that is written to: so it has happened here."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        group = Group(BrokerTransport(0, 2, mine), Ledger(0, 2))
        left, right = x.tensor_split(2)
        for number in range(2):
            theirs.sendall(frame_head("comp", {"of": number}, len(raw(right))) + bytes(raw(right)))
        group.sendrecv(left, dst=1, src=1, out=right)
        group.sendrecv(left, dst=1, src=1)
        values.unpack(values.pack(((x,), {}, {"code": x.view(x.dtype)})))


def born(descriptors: list[int], off: frozenset[str], limits: dict[str, int]) -> int:
    """In the new rank: its three connections become descriptors 3, 1 and 2, and 4; then everything else."""
    null = os.open(os.devnull, os.O_RDONLY)
    link, output, trace = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in descriptors)  # above the numbers taken below
    for fd, number in ((null, 0), (output, 1), (output, 2), (link, 3), (trace, 4)):
        os.dup2(fd, number)
    return rank.main(off, limits)


def _no_return(function, *args) -> None:
    """Run it and leave without the interpreter's cleaning up, which is the zygote's."""
    code = 120
    try:
        code = function(*args)
    except BaseException as error:  # into the rank's output, where the grader reads it
        print(f"sandbox: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        if os.environ.get("SANDBOX_DEBUG"):
            import traceback

            traceback.print_exc()
    finally:
        os._exit(code)


def _become(uid: int | None) -> None:
    """As root: another user for good, so that the kernel's limits on processes bind."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which changing the user took away: /proc/self


def _tell(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()

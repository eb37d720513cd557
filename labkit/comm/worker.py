"""One rank process, from its birth in the fork server to its end: it joins its pool's process group, then takes jobs.

Messages, in both directions, are pairs (kind, content) over a `Connection` of multiprocessing:

    caller -> rank   job   {"load": "module:function", "head", "body", "path": sys.path, "ledger": file}
                           function(head, body) gives what is to be run: a function of the group
                     go    when the run began
    rank -> caller   here  it has joined                        load  it is ready
                     done  (what the function gave, bytes; the ledger)
                     fail  what went wrong (`_failure`)
"""

import contextlib
import faulthandler
import importlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from labkit.comm.callsite import describe_error
from labkit.comm.forkserver import renumber
from labkit.comm.serialization import pack, unpack

ASK = signal.SIGUSR1  # "write down where you are"


def _messages(link: Connection) -> Iterator[tuple[str, Any]]:
    """What the caller sends, as it comes, until it has gone."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield link.recv()


def work(setup: dict[str, Any], rank: int, descriptors: list[int]) -> int:
    """Serve jobs until the caller closes the connection. Returns the exit status."""
    link = Connection(descriptors[0])
    os.set_inheritable(link.fileno(), False)
    renumber(descriptors[1:], [1], [2])
    trace = _settle_in(setup, rank)  # kept: faulthandler writes to the bare descriptor
    try:
        transport = join(setup, rank)
    except BaseException as error:
        link.send(("fail", _failure(error)))
        return 1
    link.send(("here", None))
    messages = _messages(link)
    for _, job in messages:
        _one_job(link, messages, job, transport)
    trace.close()
    return 0


def _one_job(link: Connection, messages: Iterator[tuple[str, Any]], job: dict[str, Any], transport: Any) -> None:
    from labkit.comm.group import Group
    from labkit.comm.ledger import Ledger

    try:
        sys.path[:] = job["path"]
        module, _, function = job["load"].partition(":")
        run = getattr(importlib.import_module(module), function)(job["head"], job["body"])
    except BaseException as error:
        link.send(("fail", _failure(error)))
        return
    link.send(("load", None))
    kind, start = next(messages, ("", None))
    if kind != "go":
        return
    rank, size = transport.rank, len(transport.group.ranks)
    ledger = Ledger(rank, size, start=start, sink=job["ledger"])
    answer: tuple[str, Any]
    try:
        answer = "done", (run(Group(transport, ledger)), ledger)
    except BaseException as error:  # SystemExit too: a rank that leaves without a result has failed
        answer = "fail", _failure(error)
    ledger.close()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    link.send(answer)


def _failure(error: BaseException) -> dict[str, Any]:
    """`describe_error`, and the exception itself, packed, if it can travel there and back."""
    try:
        data = pack(error)
        unpack(data)
    except Exception:
        data = b""
    return {**describe_error(error), "error": data}


def _settle_in(setup: dict[str, Any], rank: int) -> Any:
    """Take over the caller's surroundings. Returns the file for tracebacks."""
    os.environ.clear()
    os.environ.update(setup["environ"])
    os.chdir(setup["cwd"])
    sys.argv[:] = setup["argv"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a rank that is killed must not take its last lines with it
    trace = open(os.path.join(setup["directory"], f"trace{rank}"), "w")  # noqa: SIM115  open as long as this process lives
    trace.write(f"{threading.get_ident():016x}\n")
    trace.flush()
    faulthandler.register(ASK, file=trace, all_threads=True)
    faulthandler.enable(file=trace)  # on a crash: where each thread was
    return trace


def parse_trace(path: str) -> list[tuple[str, int, str]]:
    """The main thread's frames in the last dump that faulthandler wrote to this file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            main, _, text = file.read().partition("\n")
    except OSError:
        return []
    # Each thread of a dump begins with "Thread 0x..." or "Current thread 0x...".
    _, found, text = text.rpartition(f"hread 0x{main}")
    stack = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', text.partition("hread 0x")[0], re.M)
    return [(file, int(line), name) for file, line, name in stack] if found else []


def join(setup: dict[str, Any], rank: int) -> Any:
    """Become a member of the pool's process group; the group's store is a file, so no port has to be chosen."""
    import torch
    import torch.distributed as dist

    from labkit.comm import transport

    size = setup["size"]
    torch.set_num_threads(max(1, setup["cores"] // size))
    transport.stay_inside()
    store = dist.FileStore(os.path.join(setup["directory"], "store"), size)
    return transport.join(setup["device"], rank, store=store, rank=rank, world_size=size)

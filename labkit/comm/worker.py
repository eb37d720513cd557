"""One rank process, from its birth in the fork server to its end: it joins its pool's process group, then takes jobs.

Frames, in both directions: 4 letters, a length, the content.

    caller -> rank   job   JSON: {"load": "module:function", "head": ..., "path": sys.path, "ledger": file}
                     body  bytes. function(head, body) gives what is to be run: a function of the group
                     go    JSON: when the run began
    rank -> caller   here  it has joined                        load  it is ready
                     ledg  JSON: the ledger                     done  what the function gave, bytes
                     fail  what went wrong, pickled
"""

import contextlib
import faulthandler
import importlib
import io
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

from labkit.comm.callsite import describe_error
from labkit.comm.forkserver import renumber
from labkit.comm.serialization import pack, unpack
from labkit.errors import LabError

HEADER = struct.Struct("!4sQ")
ASK = signal.SIGUSR1  # "write down where you are"


def frame(kind: str, content: bytes = b"") -> bytes:
    return HEADER.pack(kind.encode().ljust(4), len(content)) + content


def _frames(link: socket.socket) -> Iterator[tuple[str, bytes]]:
    """What the caller sends, as it comes, until it has gone."""
    with contextlib.suppress(OSError), link.makefile("rb") as file:
        while len(head := file.read(HEADER.size)) == HEADER.size:
            kind, length = HEADER.unpack(head)
            yield kind.decode().strip(), file.read(length)


def work(setup: dict[str, Any], rank: int, descriptors: list[int]) -> int:
    """Serve jobs until the caller closes the connection. Returns the exit status."""
    link = socket.socket(fileno=descriptors[0])
    link.set_inheritable(False)
    renumber(descriptors[1:], [1], [2])
    trace = _settle_in(setup, rank)  # kept: faulthandler writes to the bare descriptor
    try:
        transport = join(setup, rank)
    except BaseException as error:
        link.sendall(frame("fail", _failure(error)))
        return 1
    link.sendall(frame("here"))
    frames = _frames(link)
    for (_, job), (_, body) in zip(frames, frames):
        _one_job(link, frames, json.loads(job), body, transport)
    trace.close()
    return 0


def _one_job(
    link: socket.socket, frames: Iterator[tuple[str, bytes]], job: dict[str, Any], body: bytes, transport: Any
) -> None:
    from labkit.comm.group import Group
    from labkit.comm.ledger import Ledger

    try:
        sys.path[:] = job["path"]
        module, _, function = job["load"].partition(":")
        run = getattr(importlib.import_module(module), function)(job["head"], body)
    except BaseException as error:
        link.sendall(frame("fail", _failure(error)))
        return
    link.sendall(frame("load"))
    kind, start = next(frames, ("", b""))
    if kind != "go":
        return
    rank, size = transport.rank, len(transport.group.ranks)
    ledger = Ledger(rank, size, start=json.loads(start), sink=job["ledger"].format(rank=rank))
    try:
        answer = frame("done", run(Group(transport, ledger)))
        answer = frame("ledg", json.dumps(ledger.to_json()).encode()) + answer
    except BaseException as error:  # SystemExit too: a rank that leaves without a result has failed
        answer = frame("fail", _failure(error))
    ledger.close()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    link.sendall(answer)


def _failure(error: BaseException) -> bytes:
    """An exception as plain data; the object itself too, if it can travel there and back."""
    try:
        data = pack(error)
        unpack(data)
    except Exception:
        data = b""
    return pack({**describe_error(error), "error": data})


def _settle_in(setup: dict[str, Any], rank: int) -> Any:
    """Take over the caller's surroundings. Returns the file for tracebacks."""
    os.environ.clear()
    os.environ.update(setup["environ"])
    os.chdir(setup["cwd"])
    sys.argv[:] = setup["argv"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a rank that is killed must not take its last lines with it
    path = os.path.join(setup["directory"], f"trace{rank}")
    trace = open(path, "w")  # noqa: SIM115  open as long as this process lives
    trace.write(f"{threading.get_ident():x}\n")
    trace.flush()
    faulthandler.register(ASK, file=trace, all_threads=True)
    faulthandler.enable(file=trace)  # on a crash: where each thread was
    return trace


def parse_trace(path: str) -> list[tuple[str, int, str]]:
    """The main thread's frames in the last dump that faulthandler wrote to this file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            first, *lines = file.read().splitlines()
    except (OSError, ValueError):
        return []
    frames: list[tuple[str, int, str]] = []
    inside = False
    for line in lines:
        if line.startswith(("Thread 0x", "Current thread 0x")):
            inside = int(line.split("0x", 1)[1].split()[0], 16) == int(first, 16)
            frames = [] if inside else frames
        elif inside and (found := re.fullmatch(r'  File "(.*)", line (\d+) in (.*)', line)):
            frames.append((found[1], int(found[2]), found[3]))
    return frames


def join(setup: dict[str, Any], rank: int) -> Any:
    """Become a member of the pool's process group; the group's store is a file, so no port has to be chosen."""
    import torch
    import torch.distributed as dist

    from labkit.comm import transport

    size = setup["size"]
    torch.set_num_threads(max(1, setup["cores"] // size))
    if setup["device"] == "cuda" and torch.cuda.device_count() < size:
        have = torch.cuda.device_count()
        raise LabError(f"{size} ranks need {size} GPUs, and this machine has {have}: start fewer, or use device='cpu'")
    transport.stay_inside()
    store = dist.FileStore(os.path.join(setup["directory"], "store"), size)
    return transport.join(setup["device"], rank, store=store, rank=rank, world_size=size)

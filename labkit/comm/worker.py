"""One rank process: what it does from its birth in the helper to its end.

It joins the process group of its crew, then takes jobs from the caller: import what the job names, wait for "go", run
the function, send the return value and the ledger back. The ledger's file and the traceback file in the crew's
directory are there for the case that it can no longer speak for itself.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import pickle
import runpy
import signal
import socket
import sys
import threading
import types
from typing import Any

from labkit.comm.callsite import installed
from labkit.comm.outcome import tell
from labkit.comm.serialization import HEADER, frame, pack, unpack, unpack_job
from labkit.errors import LabError

ASK = signal.SIGUSR1  # "write down where you are"
importing_main = False  # True while the caller's script is being imported into a rank
imported_main = False  # and once it has been
read_sources: dict[str, int | None] = {}  # source files that this rank has read, and when they were last changed then
born_with = ""  # the last module that the helper had imported


def work(control: int, setup: dict[str, Any]) -> int:
    """Serve jobs until the caller closes the connection. Returns the exit status."""
    global born_with
    born_with = next(reversed(sys.modules))
    link = socket.socket(fileno=control)
    link.set_inheritable(False)
    _settle_in(setup)
    rank = setup["rank"]
    try:
        transport = join(setup)
    except BaseException as error:
        link.sendall(frame("fail", pack(_failure(error))))
        return 1
    link.sendall(frame("here"))
    while True:
        try:
            kind, payload = _read(link)
        except (EOFError, OSError):
            return 0
        if kind != "job":
            return 0
        _one_job(link, payload, transport, rank, setup)


def _one_job(link: socket.socket, payload: bytes, transport: Any, rank: int, setup: dict[str, Any]) -> None:
    from labkit.comm.group import Group
    from labkit.comm.ledger import Ledger

    header, job = unpack(payload)
    if any(_modified(path) != when for path, when in read_sources.items()):
        link.sendall(frame("load", b"stale"))  # the caller starts new processes, which read the files anew
        return
    try:
        sys.path[:] = header["path"]
        if header["needs"]["main"] is not None:
            _import_main(header["needs"]["main"])
        fn, args = unpack_job(job, header["needs"])
        _note_sources()
    except BaseException as error:
        link.sendall(frame("fail", pack(_failure(error))))
        return
    link.sendall(frame("load"))
    kind, start = _read(link)
    if kind != "go":
        return
    ledger = Ledger(rank, setup["size"], start=unpack(start), sink=header["sink"].format(rank=rank))
    group = Group(transport, ledger)
    try:
        value = fn(group, *args)
        data = _pack_value(value)
        answer = frame("done", pack((data, ledger.to_json())))
    except BaseException as error:  # SystemExit too: a rank that leaves without a result has failed
        answer = frame("fail", pack(_failure(error)))
    ledger.close()
    _note_sources()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    link.sendall(answer)


def _note_sources() -> None:
    """Remember when the files of modules that are neither installed nor the helper's were last changed. Only what came
    after the helper's is looked at: to touch all modules costs a rank a third of its start (each page is copied)."""
    for name in list(itertools.takewhile(lambda name: name != born_with, reversed(sys.modules))):
        path = getattr(sys.modules[name], "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and path not in read_sources and not installed(path):
            read_sources[path] = _modified(path)


def _modified(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _pack_value(value: Any) -> bytes:
    try:
        return pack(value)
    except Exception as error:
        raise LabError(f"the return value cannot be sent back ({error}): return plain values and tensors") from None


def _failure(error: BaseException) -> dict[str, Any]:
    """An exception as plain data; the object itself too, if it can travel there and back."""
    try:
        data = pack(error)
        pickle.loads(data)
    except Exception:
        data = None
    return {**tell(error), "error": data}


def _settle_in(setup: dict[str, Any]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(setup["environ"])
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        loopback = next((n for _, n in socket.if_nameindex() if n in ("lo", "lo0")), None)
        if loopback:
            os.environ.setdefault(name, loopback)  # nothing listens outside this machine
    os.chdir(setup["cwd"])
    sys.argv[:] = setup["argv"]
    sys.path[:] = setup["path"]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # a rank that is killed must not take its last lines with it
    trace = open(os.path.join(setup["directory"], f"trace{setup['rank']}"), "w")
    trace.write(f"{threading.get_ident():x}\n")
    trace.flush()
    faulthandler.register(ASK, file=trace, all_threads=True)
    faulthandler.enable(file=trace)  # on a crash: where each thread was
    worker_files.append(trace)


worker_files: list[Any] = []  # kept open: faulthandler writes to the bare descriptor


def join(setup: dict[str, Any]):
    """Become a member of the crew's process group; the group's store is a file, so no port has to be chosen."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from labkit.comm.transport import TorchTransport

    rank, size = setup["rank"], setup["size"]
    torch.set_num_threads(max(1, setup["cores"] // size))
    extra: dict[str, Any] = {}
    device = torch.device("cpu")
    if setup["device"] == "cuda":
        if torch.cuda.device_count() < size:
            raise LabError(
                f"{size} ranks need {size} GPUs, and this machine has {torch.cuda.device_count()}: "
                f"ask for fewer ranks, or use device='cpu'"
            )
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        extra = {"device_id": device}
    store = dist.FileStore(os.path.join(setup["directory"], "store"), size)
    # The caller keeps the time. The library's own limit must never be the first to strike.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if setup["device"] == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(days=7),
        **extra,
    )
    return TorchTransport(device)


def _import_main(main: dict[str, str]) -> None:
    """Import the caller's script under another name, so that `if __name__ == "__main__"` does not run it again."""
    global importing_main, imported_main
    if imported_main:
        return
    importing_main = True
    try:
        module = types.ModuleType("__mp_main__")
        if "name" in main:
            content = runpy.run_module(main["name"], run_name="__mp_main__", alter_sys=True)
        else:
            content = runpy.run_path(main["path"], run_name="__mp_main__")
        module.__dict__.update(content)
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        imported_main = True
    finally:
        importing_main = False


def _read(link: socket.socket) -> tuple[str, bytes]:
    def exactly(n: int) -> bytes:
        data = bytearray(n)
        view = memoryview(data)
        while view:
            got = link.recv_into(view)
            if not got:
                raise EOFError
            view = view[got:]
        return bytes(data)

    kind, length = HEADER.unpack(exactly(HEADER.size))
    return kind.decode().strip(), exactly(length)

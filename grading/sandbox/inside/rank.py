"""One rank: shut itself in, take the job from the broker, run the student's function, send the answer.

From the moment at which the student's code is imported nothing in this process can be trusted, and nothing has to be:
what leaves it is bytes on one socket, which the broker counts, caps and reads as data.
"""

import contextlib
import faulthandler
import importlib.util
import json
import marshal
import os
import shutil
import signal
import socket
import sys
from typing import Any

import torch
from labkit_inside import jail, steady  # type: ignore[import-not-found]  # this folder's name in there

from labkit.checks import bare, remote, values
from labkit.comm.callsite import describe_error
from labkit.comm.forkserver import renumber
from labkit.comm.group import Group
from labkit.comm.ledger import Ledger
from labkit.comm.link import BrokerTransport, frame_head, read_frame

LINK, TRACE = 3, 4
MAX_TEXT = 20_000  # characters of an error's text


def main(setup: dict[str, Any], number: int, descriptors: list[int]) -> int:
    """From its birth in the zygote to its end; the setup is the sandbox's defences that are off, and its limits.
    Returns the exit status: 120 if it could not be shut in."""
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        renumber([null, *descriptors], [0], [LINK], [1, 2], [TRACE])
        return _serve(frozenset(setup["off"]), setup["limits"], setup["hidden"], setup["weighed"])
    except BaseException as error:  # into the rank's output, where the grader reads it
        print(f"sandbox: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 120


def _serve(off: frozenset[str], limits: dict[str, int], hidden: list[str], weighed: bool) -> int:
    if weighed:
        steady.steady()
        limits = {**limits, "disk": steady.STASH, "names": steady.NAMES}
    jail.shut(off, limits, keep=TRACE, hidden=hidden)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1, file=TRACE, all_threads=False)
    link = socket.socket(fileno=LINK)
    link.sendall(frame_head("born", {}))  # from here on this process's end is its own doing
    kind, job, body = read_frame(link)
    if kind != "job":
        return 121
    try:
        sent = [bytes(body)]
        del body  # what arrived packed is memory that a student's code could write over: see `_run`
        answer = _compiled(job) if "compile" in job else _run(link, job, sent)
        head = frame_head("done", {}, len(answer))
    except BaseException as error:  # SystemExit too: a rank that leaves without an answer has failed
        head, answer = frame_head("fail", _failure(error)), b""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # theirs by now: a closed or replaced one must not cost them their answer
            stream.flush()
    link.sendall(head)
    link.sendall(answer)
    return 0


def _run(link: socket.socket, job: dict[str, Any], sent: list[bytes]) -> bytes:
    """`sent` is emptied: nobody holds the packed arguments while the student's code runs."""
    given, named, modules = values.unpack(sent.pop())
    if job["without"]:  # no code of a student's in this process, which holds what they must do without
        return bare.Process(job).answer(values.pack((given, named)))
    transport = BrokerTransport(job["rank"], job["size"], link, steady.tidy if job["weighed"] else None)
    group = Group(transport, Ledger(job["rank"], job["size"]))
    reference = None
    if job["stands_on"]:
        reference = os.path.join(os.environ["TMPDIR"], "reference")
        for path, code in modules.items():
            os.makedirs(os.path.dirname(f"{reference}/{path}"), exist_ok=True)
            with open(f"{reference}/{path}", "wb") as file:
                file.write(code.numpy().tobytes())
    try:
        return values.pack(remote.answer(group, job, given, named, reference, loaded=lambda: _remove(reference)))
    finally:
        _remove(reference)


def _compiled(job: dict[str, Any]) -> bytes:
    """The student's modules as .pyc files, {path: bytes as uint8}: compiled here once, not in every rank. Nothing of
    them runs for it, and a file that has changed since, or that does not compile, is compiled when it is imported."""
    found = {}
    for path in job["compile"]:
        try:
            with open(f"{job['root']}/{path}", "rb") as file:
                source = file.read()
            code = compile(source, f"{job['root']}/{path}", "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        by_hash = (3).to_bytes(4, "little")
        head = importlib.util.MAGIC_NUMBER + by_hash + importlib.util.source_hash(source)
        found[path] = torch.frombuffer(bytearray(head + marshal.dumps(code)), dtype=torch.uint8)
    return values.pack((remote.OK, found))


def _remove(reference: str | None) -> None:
    if reference:
        shutil.rmtree(reference, ignore_errors=True)


def _failure(error: BaseException) -> dict[str, Any]:
    said = describe_error(error)
    stack = [[str(file)[:300], int(line), str(name)[:100]] for file, line, name in said["stack"][:30]]
    text, traceback = said["text"][:MAX_TEXT], said["traceback"][-MAX_TEXT:]
    kind = "unfinished" if isinstance(error, NotImplementedError) else "memory" if _memory(error) else "raised"
    failure = {"kind": kind, "text": text, "traceback": traceback, "stack": stack}
    if len(json.dumps(failure)) > 60_000:
        failure.update(text=text[:2000], traceback=traceback[-5000:], stack=stack[:5])
    return failure


def _memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))

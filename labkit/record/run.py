"""The run folder: what a run was, what happened at each step, readable whatever kills it.

    run.json       one object: kind, status, command, config, versions, hardware, seeds, started, finished, results, ...
    steps.jsonl    one line a step: step, loss, lr, grad_norm, tokens, seconds, tokens_per_s, memory, skipped, ...
                   in some lines also heldout, scales, param_norm and grad_norms, aside (seconds beside training)
    events.jsonl   one line an event: time, step, kind, message, ...
    figures/       pictures        report.html   drawn from the above by `labkit.compare.report`

`run.json` is replaced whole. A line is one `write`, so that kill -9 tears the last one at worst: a reader skips and
counts it, and a resumed run cuts it off. Of a run's ranks, rank 0 alone has a record; the others have None.
"""

import datetime
import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from labkit.errors import FULL, LabError
from labkit.record import hardware
from labkit.record.clean import clean_command, jsonable, typed_command
from labkit.record.files import explained, replace_file
from labkit.record.read import RunData, is_alive, load_run, parse, read_run

__all__ = ["RunData", "RunRecord", "is_alive", "now", "read_run", "versions"]

SCHEMA = 1
PACKAGES = ("torch", "torchao", "transformer-engine", "triton", "numpy", "tokenizers", "pydantic")
# What the messages of several GPUs depend on, where it is set.
NCCL = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_CTA_POLICY", "NCCL_MAX_CTAS", "NCCL_MIN_CTAS")
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # what fits; the second is the first's older name


def _explained(place: Path) -> AbstractContextManager[None]:
    return explained(place, full="what was recorded before is kept. Free some space and resume.", stop=".")


@contextmanager
def sole_trainer(path: Path) -> Iterator[None]:
    """LabError if another process trains in this run folder: its lines would be cut, and ours stand beside them."""
    # Its own lock, exclusive: the folder's, which says that somebody writes, is shared by the objects that do in turn.
    with _explained(path):
        path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            shows = f"`lab watch {path}` shows it"
            raise LabError(f"another process trains in {path} ({shows}): wait, or choose another folder") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(fd)


class RunRecord:
    """A run folder being written. May be used as a context manager, and written by several objects in turn."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._files: dict[str, int] = {}

    # ---- making and opening

    @classmethod
    def create(
        cls, path: str | os.PathLike, *, kind: str, command: str | list[str] | None = None, **more: Any
    ) -> "RunRecord":
        """Start a record in a new or empty folder; more: keys of run.json. LabError: a run is there, or no write."""
        self = cls(path)
        if (self.path / "run.json").exists():
            raise LabError(f"{self.path} already holds a run: resume it, or choose another folder.")
        with _explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "figures").mkdir(exist_ok=True)
        run = {
            "schema": SCHEMA,
            "kind": kind,
            "status": "running",
            "command": clean_command(command) if command is not None else typed_command(),
            "config": {},
            "seeds": {},
            "versions": versions(),
            "started": now(),
            "finished": None,
            "results": {},
            **more,
        }
        if "hardware" not in run:
            run["hardware"] = hardware.describe()
        self._write_run(run)
        self._append_fd("steps.jsonl")
        self._append_fd("events.jsonl")
        self._mark_alive()
        return self

    @classmethod
    def open(cls, path: str | os.PathLike, *, resume_from: int | None = None) -> "RunRecord":
        """Open a record to append to it. resume_from=k: step lines from k on go, events stay. LabError: no run."""
        self = cls(path)
        load_run(self.path)
        self._mark_alive()
        self._cut("events.jsonl")
        dropped = self._cut("steps.jsonl", resume_from)
        if resume_from is not None:
            self.update(status="running", finished=None)
            self.event("resume", step=resume_from, message=f"resumed before step {resume_from}", dropped_steps=dropped)
        return self

    # ---- writing

    def step(self, **fields: Any) -> None:
        """Append one step line, flushed before this returns. Needs `step`; losses may be NaN or infinite."""
        if "step" not in fields:
            raise TypeError("a step line needs step=")
        self._append("steps.jsonl", fields)

    def event(self, kind: str, step: int | None = None, message: str = "", **fields: Any) -> None:
        """Append one event line with the time (UTC)."""
        self._append("events.jsonl", {"time": now(), "step": step, "kind": kind, "message": message, **fields})

    def update(self, **fields: Any) -> None:
        """Set top-level keys of run.json, read again first, so that another writer's keys stay."""
        self._write_run({**load_run(self.path), **fields})

    def results(self, **fields: Any) -> None:
        self.update(results={**load_run(self.path).get("results", {}), **fields})

    def finish(self, status: str = "finished", **fields: Any) -> None:
        """Set status ("finished", "failed", "paused", "interrupted") and the time, with more keys; then `close`."""
        self._write_run({**load_run(self.path), "status": status, "finished": now(), **fields}, in_place=True)
        self.close()

    def close(self) -> None:
        """Close the files. Writing again opens them again."""
        for fd in self._files.values():
            with suppress(OSError):
                os.close(fd)
        self._files.clear()

    def __enter__(self) -> "RunRecord":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if load_run(self.path).get("status") == "running":
            if kind is None:
                self.finish()
            else:
                stopped = issubclass(kind, (KeyboardInterrupt, SystemExit))
                what = "interrupted" if stopped else "failed"
                with suppress(LabError):  # a full disk must not hide the error that ended the run
                    self.finish(what)
                with suppress(LabError):
                    self.event(what, message=f"{kind.__name__}: {error}")
        self.close()

    def __del__(self):
        with suppress(Exception):
            self.close()

    # ---- inside

    def _append_fd(self, name: str) -> int:
        if name not in self._files:
            with _explained(self.path / name):
                self._files[name] = os.open(
                    self.path / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
                )
        return self._files[name]

    def _append(self, name: str, fields: dict) -> None:
        line = (json.dumps(jsonable(fields), ensure_ascii=False, allow_nan=False) + "\n").encode()
        self._mark_alive()
        fd = self._append_fd(name)
        with _explained(self.path / name):
            before, rest = os.fstat(fd).st_size, line
            try:
                while rest:  # one write, unless the disk fills up in the middle of it
                    rest = rest[os.write(fd, rest) :]
            except OSError:
                if len(rest) < len(line):
                    os.ftruncate(fd, before)  # no half line is left behind
                raise

    def _write_run(self, run: dict, in_place: bool = False) -> None:
        target = self.path / "run.json"
        content = (json.dumps(jsonable(run), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
        with _explained(target):
            try:
                replace_file(target, content)
            except OSError as error:
                if error.errno not in FULL or not in_place or len(content) > target.stat().st_blocks * 512:
                    raise
                with open(target, "r+b", buffering=0) as file:  # how it ended must stand there, and the room is there
                    file.write(content)
                    file.truncate()

    def _cut(self, name: str, first: int | None = None) -> int:
        """Cut off a torn last line, and of step lines those from `first` on, which stand at the end; return how many."""
        file, keep, dropped = self.path / name, 0, 0
        if not file.exists():
            return 0
        with _explained(file), open(file, "r+b") as stream:  # cutting works on a full disk
            for line in stream:
                fields, whole = parse(line), line.endswith(b"\n")
                if fields is None and not whole:
                    break
                if dropped or (first is not None and fields is not None and fields.get("step", -1) >= first):
                    dropped += 1
                    continue
                if not whole:
                    stream.write(b"\n")
                keep += len(line) + (not whole)
            stream.truncate(keep)
        return dropped

    def _mark_alive(self) -> None:
        # A shared lock on the folder for as long as a writer lives; the system releases it however the writer ends.
        if "lock" not in self._files:
            with suppress(OSError):  # a file system without locks: `alive` is then unknown
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self._files["lock"] = fd
                fcntl.flock(fd, fcntl.LOCK_SH)  # waits for `is_alive`, which holds it for microseconds


def versions() -> dict[str, str]:
    """Versions of what a result depends on, without importing any of it."""
    import labkit

    found = {
        "labkit": getattr(labkit, "__version__", "unknown"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    torch = sys.modules.get("torch")
    if torch is not None:  # what really runs; NGC's build and its metadata can differ
        found["torch"] = str(torch.__version__)
        cuda = getattr(getattr(torch, "version", None), "cuda", None)
        if cuda:
            found["cuda"] = str(cuda)
            with suppress(Exception):
                found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    found.update({name: os.environ[name] for name in (*NCCL, *ALLOCATOR) if os.environ.get(name)})
    commit = _commit(Path(labkit.__file__).resolve().parent.parent)
    if commit:
        found["commit"] = commit
    return found


def now() -> str:
    """The time in UTC, ISO 8601, to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _commit(root: Path) -> str | None:
    """The commit of the course checkout, "+changes" if the tree differs from it; None outside a checkout."""
    if not (root / ".git").exists():
        return None
    git = partial(subprocess.check_output, cwd=root, text=True, timeout=5, stderr=subprocess.DEVNULL)
    try:
        changes = git(["git", "status", "--porcelain", "-uno"]).strip()
        return git(["git", "rev-parse", "--short=12", "HEAD"]).strip() + ("+changes" if changes else "")
    except (OSError, subprocess.SubprocessError):
        return None

"""A program under torchrun, watched and struck from outside: for what no `call` can test, a run that must survive.

    with site() as place:
        (place.given / "config.json").write_text(...)           # the program reads it
        place.start("capstone.drawn", ranks=2, restarts=3)
        place.signal(1, signal.SIGKILL)                         # a rank dies
        place.wait(60)                                          # torchrun's exit status
        data = place.read("run", "steps.jsonl")                 # what is left

`given` is the test's to write, `left` the program's. In grading the runner makes another Site, in a sandbox.
"""

import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from labkit.checks.markers import strip
from labkit.comm.processor import Able, family

MOST = 64 << 20  # bytes of a file that is read
SAID = 16_000  # characters of what it printed that are kept
SHUTDOWN = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300"}  # seconds for ranks that are asked to end; a busy machine is slow


def torchrun(program: str, words: Sequence[str], ranks: int, restarts: int) -> list[str]:
    """argv, without the interpreter. The port is the system's choice."""
    here = "127.0.0.1"  # a sandbox knows no names
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{here}:0", "--rdzv-id", "site", "--local-addr", here]
    agent = ["--nnodes", "1", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    # The agent asks ten times a second whether a rank has ended.
    return ["-m", "torch.distributed.run", *rendezvous, *agent, "--monitor-interval", "0.1", "-m", program, *words]


class Site:
    """Two folders, and one program at a time. root: the folder that holds the program's package."""

    def __init__(self, root: str | Path, folder: Path) -> None:
        self.root, self.folder = Path(root), folder
        self.given, self.left = folder / "given", folder / "left"
        for path in (self.given, self.left):
            path.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    # ---- for the test

    def start(self, program: str, *, ranks: int, restarts: int) -> None:
        """Start torchrun with the module `program`, whose arguments are `given` and `left`. One at a time."""
        assert self.process is None or self.process.poll() is not None, "one at a time"
        shutil.rmtree(self.left / "pids", ignore_errors=True)
        with (self.folder / "said").open("ab") as said:
            self.process = self._launch(program, ranks, restarts, said)

    def pids(self, ranks: int) -> dict[int, int] | None:
        """{rank: its process} of the newest start; None until all have written theirs."""
        try:
            written = [int(self.read("pids", f"rank-{rank}")) for rank in range(ranks)]
            found = {rank: real for rank, pid in enumerate(written) if (real := self._real(pid)) is not None}
        except (OSError, ValueError):
            return None
        return found if len(set(found.values())) == ranks else None

    def signal(self, rank: int, number: int, ranks: int = 2) -> int | None:
        """Send a rank a signal; its process, or None if there is none."""
        pid = (self.pids(ranks) or {}).get(rank)
        for one in self._behind(pid) if pid is not None else ():
            with suppress(OSError):
                os.kill(one, number)
        return pid

    def signal_agent(self, number: int) -> None:
        """Send torchrun itself a signal: SIGTERM, as a cluster does; SIGSTOP, and it ends no rank until SIGCONT."""
        if (agent := self._agent()) is not None:
            with suppress(OSError):
                os.kill(agent, number)

    def state(self, pid: int) -> str:
        """Of a process: "stopped", "running", "sleeping" and so on; "" once it has ended."""
        try:
            found = psutil.Process(pid).status()
        except (psutil.Error, ValueError):
            return ""
        return "" if found in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else str(found)

    def processes(self) -> list[int]:
        """torchrun and its ranks."""
        return [] if (agent := self._agent()) is None else family(agent)

    def able(self) -> Able:
        """A new count of the seconds for which its processes could run: to be asked with `processes()`."""
        return Able()

    def fill(self, rank: int, most: int | None, ranks: int = 2) -> bool:
        """Limit a rank's files to `most` bytes from now on, as on a full disk; None: no limit. False: not Linux."""
        if not hasattr(resource, "prlimit") or (pid := (self.pids(ranks) or {}).get(rank)) is None:
            return False
        self._limit_files(pid, most)
        return True

    def wait(self, seconds: float) -> int | None:
        """torchrun's exit status; None if it is still there."""
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def read(self, *parts: str, most: int = MOST) -> bytes:
        """A file of `left`. OSError: it is not there, is no plain file, lies behind a link, or is too large."""
        at = os.open(self.left, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = inner
            file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
        finally:
            os.close(at)
        with os.fdopen(file, "rb") as stream:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) or about.st_size > most:
                raise OSError(f"{parts[-1]} is no plain file of at most {most:,} bytes")
            return stream.read(most)

    def names(self, *parts: str) -> list[str]:
        """The names in a folder of `left`, 1000 at most; [] if there is none."""
        folder = self.left.joinpath(*parts)
        try:
            if any(path.is_symlink() for path in (folder, *folder.parents) if path.is_relative_to(self.left)):
                return []
            with os.scandir(folder) as found:
                return sorted(entry.name for entry, _ in zip(found, range(1000)))
        except OSError:
            return []

    def said(self) -> str:
        """The end of what torchrun and its ranks printed."""
        path = self.folder / "said"
        if not path.exists():
            return ""
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - SAID))
            return stream.read(SAID).decode("utf-8", "replace")

    def close(self) -> None:
        """End everything that was started."""
        if self.process is not None:
            for pid in self._everybody():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    # ---- at home

    def _launch(self, program: str, ranks: int, restarts: int, said: Any) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(self.root), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {**os.environ, **SHUTDOWN, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder)}
        argv = [sys.executable, *torchrun(program, [str(self.given), str(self.left)], ranks, restarts)]
        how: dict[str, Any] = dict(stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
        return subprocess.Popen(argv, cwd=self.root, env=own, **how)

    def _limit_files(self, pid: int, most: int | None) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)  # it has inherited this process's
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if most is None else most, hard))

    def _agent(self) -> int | None:
        return self.process.pid if self.process is not None and self.running else None

    def _real(self, pid: int) -> int | None:
        """A process as this process knows it, of the number that it has for itself."""
        return pid

    def _behind(self, pid: int) -> list[int]:
        """What a signal to a rank must reach."""
        return [pid]

    def _everybody(self) -> list[int]:
        """Its processes, apart from torchrun's group: torchrun gives each rank a session of its own."""
        return list((self.pids(2) or {}).values())


def composed(to: Path, students: Path, reference: Path, case: Any) -> Path:
    """`to`, with the reference's package, blanks in what the task does not stand on, and the students' own modules."""
    package, kept = case.package, {name.rpartition(".")[0] for name in case.stands_on}
    left_out = shutil.ignore_patterns("__pycache__", "results", "*.ipynb", "*.md", "test_*.py")
    shutil.copytree(reference / package, to / package, ignore=left_out)
    for path in (to / package).rglob("*.py"):
        if ".".join(path.relative_to(to / package).with_suffix("").parts) not in kept:
            path.write_text(strip(path.read_text(encoding="utf-8"), path.name), encoding="utf-8")
    for module in case.modules:
        file = Path(package, *module.split(".")).with_suffix(".py")
        (to / file).unlink(missing_ok=True)
        if (students / file).is_file() and not (students / file).is_symlink():
            shutil.copyfile(students / file, to / file)
    return to

"""Python, the operating system, the plain packages; memory, disk, temporary files, shared memory."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from labkit.doctor.findings import NOTEBOOK, PACKAGES, PYTHON, SETUP, Check, dotted
from labkit.errors import LabError, in_words
from labkit.record import hardware

DEMO_MEMORY, DEMO_DISK, TEMPORARY, SHARED = 4 * 2**30, 2**30, 200 * 2**20, 2**30


def basics() -> Iterator[Check]:
    version, narrow = platform.python_version(), sys.maxsize <= 2**32
    fix = f"install Python {dotted(PYTHON)} or newer, 64 bit, then `make setup PYTHON=python3.12`"
    good = sys.version_info >= PYTHON and not narrow
    yield Check("Python", good, f"{version}, a 32-bit build" if narrow else version, fix)
    fix = "use Linux or macOS; on Windows install WSL 2 (`wsl --install`) and work inside it"
    good = platform.system() in ("Linux", "Darwin")
    yield Check("operating system", good, hardware.operating_system(), fix)
    yield _installed("packages", PACKAGES, SETUP)
    # Not in requirements-container.txt: a rented GPU needs no notebook.
    yield _installed("notebook", NOTEBOOK, f"run `make setup`, or `pip install {' '.join(NOTEBOOK)}`")


def _installed(name: str, packages: Sequence[str], fix: str) -> Check:
    found = {package: next(iter(metadata.distributions(name=package)), None) for package in packages}
    if absent := [package for package, there in found.items() if there is None]:
        return Check(name, False, f"not installed: {', '.join(absent)}", fix)
    return Check(name, True, ", ".join(f"{package} {there.version}" for package, there in found.items() if there), fix)


def room() -> Iterator[Check]:
    yield from (_memory(), _disk(), _temporary(), _shared_memory())


def _memory() -> Check:
    (total, free), most = hardware.memory_bytes(), f"the demo takes up to {gib(DEMO_MEMORY)}"
    detail = f"{gib(total)}, {gib(free)} of it free"
    if total > free < DEMO_MEMORY:
        detail += f": close other programs, {most}"
    enough = total >= 0.9 * DEMO_MEMORY  # what is sold as 4 GB shows a little less
    return Check("memory", enough, detail, f"{most}: use a larger machine, or raise the container's memory limit")


def _disk() -> Check:
    from labkit.train.data.cache import cache_root

    def cache() -> Path:
        return next(folder for folder in (cache_root(), *cache_root().absolute().parents) if folder.exists())

    found, bad = [], []
    for label, place, fix in (
        ("the working directory", Path.cwd, "cd to a folder that you may write to"),
        ("the cache", cache, "set LABKIT_CACHE to a folder that you may write to"),
    ):
        try:
            free = _free(place())
            found.append(f"{gib(free)} free in {label}")
            if free < DEMO_DISK:
                bad.append(f"free {gib(DEMO_DISK)} in {label}")
        except (OSError, LabError) as error:
            found.append(f"{label} cannot be written ({in_words(error)})")
            bad.append(fix)
    return Check("disk", not bad, "; ".join(found), "; ".join(bad))


def _temporary() -> Check:
    fix = f"set TMPDIR to a folder that you may write to and that has {gib(TEMPORARY)} free"
    return _space("temporary files", tempfile.gettempdir, TEMPORARY, "", fix)


def _shared_memory(folder: str = "/dev/shm") -> Check:
    fix = "in Docker: `docker run --shm-size=8g` or `--ipc=host`; else mount a larger tmpfs there"
    if not os.path.isdir(folder):
        return Check("/dev/shm", None, "not on this system; only NCCL on several GPUs needs it", fix)
    return _space("/dev/shm", lambda: folder, SHARED, ": NCCL on several GPUs needs more", fix)


def _space(name: str, folder: Callable[[], str], least: int, short: str, fix: str) -> Check:
    try:
        free = _free(folder())
    except OSError as error:
        return Check(name, False, f"cannot be written: {in_words(error)}", fix)
    return Check(name, free >= least, f"{gib(free)} free{short if free < least else ''}", fix)


def _free(folder: str | Path) -> int:
    """Bytes that are free in a folder. OSError where nothing can be written."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x" * 4096)
        file.flush()
    return shutil.disk_usage(folder).free


def gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size < 10 * 2**30 else f"{size / 2**30:.0f} GiB"

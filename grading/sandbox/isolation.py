"""`grade doctor`: which isolation this machine gives, and what is missing with the fix."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grading.sandbox import filters, watch
from labkit.doctor import grading as probes
from labkit.doctor.findings import Check
from labkit.errors import LabError

NEEDED = "grade run needs this; without it only --unsandboxed works, and its marks say so"


def checks() -> Iterator[Check]:
    """One Check at a time: the kernel's parts first, then the real thing, tried."""
    yield from probes.sandbox()
    try:
        filters.program(platform.machine())
        yield Check("system-call filter", True, f"for {platform.machine()}")
    except LabError as error:
        what, _, fix = str(error).partition(": ")
        yield Check("system-call filter", False, what, fix)
    rollup = os.path.exists("/proc/self/smaps_rollup")
    yield Check(
        "memory of a whole tree",
        rollup,
        "the kernel tells shared memory apart"
        if rollup
        else "the kernel has no /proc/PID/smaps_rollup: what ranks share is counted for each, so limits bite early",
        "" if rollup else "Linux 4.14 or newer",
    )
    fair = watch.starvation()
    yield Check(
        "a busy machine",
        fair,
        "the kernel tells how long a process waited for a processor"
        if fair
        else "the kernel has no /proc/PID/schedstat: on an overloaded machine a slow case may look hung",
        "" if fair else "grade with --jobs 1 and nothing else running",
    )
    why = missing()
    yield Check(
        "a submission's sandbox",
        why is None,
        "starts, imports torch, and shuts a rank in" if why is None else f"does not start: {why}",
        "" if why is None else NEEDED,
    )


def missing() -> str | None:
    """Why a submission cannot be shut in here; None if it can: a sandbox is started, and a rank forked in it."""
    from grading.sandbox.box import try_out

    if platform.system() != "Linux":
        return "sandboxes exist on Linux only"
    folder = Path(tempfile.mkdtemp(prefix="grade-doctor-"))
    try:
        folder.chmod(0o755)
        return try_out(folder)
    except LabError as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

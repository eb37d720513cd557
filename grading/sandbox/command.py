"""The bubblewrap command of one submission's sandbox: what is in there, and what is not.

In it: the interpreter with its packages, the shared libraries that torch maps, what of labkit the week's tasks may use,
the reference of earlier weeks that the week builds on (the capstone alone does, when their solutions are no secret any
more), grading/sandbox/inside, and the submission's folder; all read-only, and the course masked wherever it is
installed.
Besides, small memory file systems for /tmp and /dev/shm. Not in it: anything else of this machine, the network, other
processes, the environment.
"""

import os
import re
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import labkit
from grading.sandbox.inside.jail import NODES
from labkit.checks import boundary
from labkit.comm.callsite import students
from labkit.errors import LabError

COURSE, SUBMISSION = "/course", "/submission"
REFERENCE = "reference"  # in the scratch folder: parts of the reference, which a task stands on
Stack = list[tuple[str, int, str]]  # (file, line, function), innermost first
INSIDE = "labkit_inside"  # what grading/sandbox/inside is called in there: no helper of a student's has this name
# Top-level packages of the course that must not be seen, wherever pip has put them.
_COURSE = re.compile(r"^(week\d+\w*|capstone\w*|labkit|grading|tests|solutions)$")
_PACKAGES = ("stdlib", "platstdlib", "purelib", "platlib")
_LOADERS = ("/lib64", "/lib", "/usr/lib64")  # where the dynamic loader is named
# glibc asks there how large a huge page is. Beside these files the kernel counts every process's: a bell for all ranks.
_HUGE = tuple(f"/sys/kernel/mm/transparent_hugepage/{name}" for name in ("enabled", "hpage_pmd_size"))


def bwrap() -> str:
    """The path of bubblewrap. LabError without it."""
    found = shutil.which("bwrap")
    if found is None:
        raise LabError(
            "bubblewrap is not installed, and without it a submission cannot be shut in: sudo apt install "
            "bubblewrap (`grade doctor` tells more), or --unsandboxed for people whom you trust"
        )
    return found


def command(
    folder: Path,
    descriptor: int,
    settings: str,
    disk: int,
    off: frozenset[str] = frozenset(),
    uses: tuple[str, ...] = (),
    weeks: tuple[str, ...] = (),
) -> list[str]:
    """argv that runs the zygote on the submission in `folder`.

    See `walls` for the others.

    descriptor   of the zygote's end of its socket, inherited
    settings     JSON for it
    """
    return [*walls(folder, disk, off, uses, weeks), "-m", f"{INSIDE}.zygote", str(descriptor), settings]


def walls(
    folder: Path,
    disk: int,
    off: frozenset[str] = frozenset(),
    uses: tuple[str, ...] = (),
    weeks: tuple[str, ...] = (),
    more: Sequence[str] = (),
) -> list[str]:
    """argv that runs an interpreter, whose own arguments follow, on the submission in `folder`.

    disk         bytes of the scratch folder and of /dev/shm
    off          defences to leave out, for tests: "network", "files" (then this machine is at /host), "environment",
                 "readonly", "devices", "labkit" (then all of it is there)
    uses         of labkit, what the week declares (see labkit.checks.boundary)
    weeks        folders of earlier weeks that this one imports
    more         of bubblewrap's arguments: further folders
    """
    argv = [bwrap(), "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    argv += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if "network" not in off:
        argv.append("--unshare-net")
    if os.geteuid() == 0:  # no user namespace of bubblewrap's: the zygote becomes another user, really
        argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        argv.append("--unshare-user")
    if "environment" not in off:
        argv.append("--clearenv")
    for name, value in environment().items():
        argv += ["--setenv", name, value]
    bind = "--bind" if "readonly" in off else "--ro-bind"
    if "files" in off:
        argv += [bind, "/", "/host"]
    argv += ["--proc", "/proc"]
    if "devices" in off:
        argv += ["--dev", "/dev"]
    else:  # no terminals: through /dev/pts two ranks could talk past the broker
        argv += ["--perms", "0755", "--size", "4096", "--tmpfs", "/dev"]
        for name in NODES:
            argv += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for path in ("/dev/shm", scratch()):
        argv += ["--perms", "1777", *(["--size", str(disk)] if "limits" not in off else []), "--tmpfs", path]
    for parent in sorted({str(p) for path in system_paths() for p in Path(path).parents if str(p) != "/"}):
        argv += ["--perms", "0755", "--dir", parent]  # by itself bubblewrap would make them root's alone
    for path in system_paths():
        argv += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    for path in masked(system_paths()):
        argv += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    argv += ["--perms", "0755", "--size", "65536", "--tmpfs", COURSE, *_labkit(uses, whole="labkit" in off)]
    for week in weeks:
        argv += ["--ro-bind", week, f"{COURSE}/{os.path.basename(week)}"]
    argv += ["--ro-bind", str(Path(__file__).parent / "inside"), f"{COURSE}/{INSIDE}", "--remount-ro", COURSE]
    argv += [
        bind,
        str(folder),
        SUBMISSION,
        *more,
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
        "--chdir",
        SUBMISSION,
        "--",
    ]
    # -P: what lies in the submission's folder must not be taken for a module of the zygote's.
    return [*argv, sys.executable, "-P", "-s", "-B"]


def _labkit(uses: tuple[str, ...], whole: bool) -> list[str]:
    """What binds labkit's part: a week's answers may lie in the rest of it, for whoever imports or reads it there."""
    top = Path(labkit.__file__).parent
    if whole:
        return ["--ro-bind", str(top), f"{COURSE}/labkit"]
    argv: list[str] = []
    paths = {path: f"{COURSE}/labkit/{path.relative_to(top)}" for path in boundary.files(uses)}
    for parent in sorted({os.path.dirname(inside) for inside in paths.values()}):
        argv += ["--perms", "0755", "--dir", parent]
    for path, inside in paths.items():
        argv += ["--ro-bind", str(path), inside]
    return argv


def outside(stack: Stack) -> Stack:
    """A stack from inside as one of here: labkit's files by their names here; without what starts ranks in there. Of
    the reference's files only what no line of the submission's has called."""
    top = os.path.join(os.path.dirname(os.path.abspath(labkit.__file__)), "")
    found = [
        (top + file.removeprefix(f"{COURSE}/labkit/") if file.startswith(f"{COURSE}/labkit/") else file, line, name)
        for file, line, name in stack
        if not file.startswith(f"{COURSE}/{INSIDE}/")
    ]
    own = any(file.startswith(SUBMISSION + "/") and students(file) for file, _, _ in found)
    return [at for at in found if not (own and at[0].startswith(references()))]


def references() -> tuple[str, ...]:
    """Where the reference's files lie inside: of earlier weeks, and of what a task stands on."""
    return f"{COURSE}/", f"{scratch()}/{REFERENCE}/"


def scratch() -> str:
    """The folder inside that may be written: /tmp, unless the interpreter or its packages lie below that. A rank mounts
    its own over it, which would hide them."""
    return "/scratch" if any(path.startswith("/tmp/") for path in system_paths()) else "/tmp"


def environment() -> dict[str, str]:
    """All variables that there are inside."""
    own = scratch()
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": own,
        "TMPDIR": own,
        "LANG": "C.UTF-8",
        "PYTHONPATH": COURSE,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MPLCONFIGDIR": own,
        # Python's objects in malloc's memory, and that in huge pages: forking a rank takes a third of the time.
        "PYTHONMALLOC": "malloc",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }


@cache
def system_paths() -> tuple[str, ...]:
    """What of this machine a Python with torch needs: no more than can be named."""
    wanted: set[str] = set(_chain(sys.executable))
    # Not the whole prefix: people make virtual environments in a course's own folder, and /usr/local holds nbgrader's
    # exchange with everybody's hand-ins.
    if Path(sys.prefix, "pyvenv.cfg").is_file() or Path(sys.prefix, "conda-meta").is_dir():
        wanted |= {os.path.join(sys.prefix, name) for name in ("lib", "lib64", "pyvenv.cfg")}
    wanted |= {*site.getsitepackages(), *(sysconfig.get_path(name) for name in _PACKAGES)}
    names = {
        "installed_base": sys.base_prefix,
        "base": sys.base_prefix,
        "installed_platbase": sys.base_exec_prefix,
        "platbase": sys.base_exec_prefix,
    }
    wanted |= {sysconfig.get_path(name, vars=names) for name in ("stdlib", "platstdlib")}
    wanted |= set(_libraries())
    wanted |= {path for path in (*_LOADERS, "/etc/ld.so.cache", *_HUGE) if os.path.exists(path)}
    return _outermost(path for path in wanted if os.path.exists(path))


def _chain(path: str) -> Iterable[str]:
    """A path, what it links to, what that links to, ... to the file itself."""
    while True:
        yield path
        if not os.path.islink(path):
            return
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def _libraries() -> Iterable[str]:
    """Folders of the shared libraries that this process, with torch, has mapped."""
    import torch  # noqa: F401  it maps the libraries

    with open("/proc/self/maps") as file:
        for line in file:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith("/") and ".so" in os.path.basename(path) and not path.startswith("/memfd:"):
                yield os.path.dirname(path)


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without those that lie in another one. A link in a parent's place is followed: bubblewrap makes plain folders."""
    kept: list[str] = []
    for path in sorted({os.path.join(os.path.realpath(os.path.dirname(p)), os.path.basename(p)) for p in paths}):
        if not any(path.startswith(other + "/") and not os.path.islink(other) for other in kept):
            kept.append(path)
    return tuple(kept)


def masked(paths: Iterable[str]) -> list[str]:
    """Folders of the course below these paths' package folders: installed without -e, its solutions lie among them."""
    stdlib = sysconfig.get_path("stdlib")
    places = {
        *site.getsitepackages(),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        f"{stdlib}/site-packages",
        f"{stdlib}/dist-packages",
    }
    found = []
    for folder in places:
        if os.path.isdir(folder) and any(folder == path or folder.startswith(path + "/") for path in paths):
            found += [entry.path for entry in os.scandir(folder) if entry.is_dir() and _COURSE.match(entry.name)]
    return sorted(set(found))

"""What grading shuts submissions in, for `grade doctor`."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from labkit.doctor.findings import Check
from labkit.errors import in_words
from labkit.record import hardware

NAMESPACES = ("--user", "--map-root-user", "--pid", "--net", "--ipc", "--fork")
SANDBOX = ("--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
FORBIDDING = {  # setting of the kernel: the value that forbids user namespaces, one that allows them, who forbids
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0", "AppArmor forbids it to ordinary programs"),
    "kernel.unprivileged_userns_clone": ("0", "1", "the kernel forbids it to ordinary users"),
    "user.max_user_namespaces": ("0", "15000", "the kernel allows none"),
}
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")  # Docker's, Podman's


def sandbox() -> Iterator[Check]:
    """New user, process, network and message namespaces, and bubblewrap."""
    if platform.system() != "Linux":
        for name in ("user namespaces", "bubblewrap"):
            yield Check(name, None, "exists on Linux only", "grade on Linux")
        return
    yield _tried("user namespaces", "can be made", "cannot be made", ("unshare", *NAMESPACES, "true"))
    if shutil.which("bwrap") is None:
        yield Check("bubblewrap", None, "not installed; only grading needs it", "sudo apt install bubblewrap")
    else:
        yield _tried("bubblewrap", "starts a sandbox", "installed, but starts no sandbox", ("bwrap", *SANDBOX, "true"))


def _tried(name: str, works: str, fails: str, command: tuple[str, ...]) -> Check:
    who = ", tried as an ordinary user" if os.geteuid() == 0 else ""
    ok, said = _try(*command)
    why, fix = _forbidden()
    return Check(name, ok, f"{works}{who}" if ok else f"{fails}{who} ({said}): {why}", fix)


def _forbidden() -> tuple[str, str]:
    """Who forbids user namespaces, and how to allow them."""
    for setting, (bad, good, why) in FORBIDDING.items():
        if hardware.read_system(f"/proc/sys/{setting.replace('.', '/')}").strip() == bad:
            return why, f"sudo sysctl -w {setting}={good} (a line in /etc/sysctl.d/ makes it stay)"
    if any(os.path.exists(mark) for mark in CONTAINER_MARKS):
        unconfined = " ".join(f"--security-opt {what}=unconfined" for what in ("seccomp", "apparmor", "systempaths"))
        return "this container forbids it", f"start it with {unconfined}, or grade outside a container"
    return "the system does not say why", "see `dmesg` after `unshare -Ur true`, or ask who runs this machine"


def _try(*command: str, seconds: float = 15.0) -> tuple[bool, str]:
    """Run it; (it worked, the last line it said). Root may do anything, so as root it runs as nobody."""
    drop: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(command, timeout=seconds, cwd="/", **quiet, **drop)
    except subprocess.TimeoutExpired:
        return False, f"no answer in {seconds:g} s"
    except (OSError, subprocess.SubprocessError) as error:
        return False, in_words(error)
    said = done.stderr.strip().splitlines()
    return done.returncode == 0, said[-1] if said else f"status {done.returncode}"

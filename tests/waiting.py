"""Waiting for what must come, however busy the machine is."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What it returns, as soon as that is true."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found


def gone(pid: int) -> bool:
    """No such process any more; one that has ended and that nobody has collected counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

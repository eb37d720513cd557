"""What may enter a record: plain JSON, and nothing that the person who ran it would not want to share.

NaN and the infinities become the strings "NaN", "Infinity", "-Infinity", which `restore` turns back. The home directory
becomes `~`, the working directory `.`, any other absolute path `.../its-last-part`, the machine's name `<host>`, and
values whose key or option says token, password, secret or key `<hidden>`.
"""

import dataclasses
import math
import os
import re
import shlex
import socket
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
HIDDEN = "<hidden>"

# Two parts or more ("/home/ada/x"), not after a word character, so that "tok/s/GPU" and "https://a/b" are left alone.
_ABSOLUTE = re.compile(r"(?<![\w.~/:>])/(?:[^\s/'\"`,;:()<>\[\]{}]+/)+[^\s/'\"`,;:()<>\[\]{}]*")
_SECRET = r"(?:token|password|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key)"
_SECRET_KEY = re.compile(rf"(?:^|[_-]){_SECRET}$", re.I)
_SECRET_OPTION = re.compile(rf"(--(?:[\w-]*[_-])?{_SECRET}[\s=]+|\b(?:\w*_)?{_SECRET}=)('[^']*'|\"[^\"]*\"|\S+)", re.I)
_SECRET_VALUE = re.compile(r"\b(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[bp]-|AKIA)[\w-]{12,}")


def jsonable(value: Any, key: str = "") -> Any:
    """`value` as plain JSON types, private parts removed; what is none and cannot become one is its str."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return HIDDEN if value and key and _SECRET_KEY.search(key) else scrub(value)
    if isinstance(value, dict):
        return {scrub(str(k)): jsonable(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [jsonable(v, key) for v in items]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
    for method in ("model_dump", "tolist"):  # pydantic model; numpy scalar, array or torch tensor
        if hasattr(value, method) and not isinstance(value, type):
            return jsonable(getattr(value, method)(), key)
    return scrub(str(value))


def restore(value: Any) -> Any:
    """The inverse of `jsonable` for non-finite numbers, in place of the three strings, at any depth."""
    if isinstance(value, str):
        return NONFINITE.get(value, value)
    if isinstance(value, dict):
        return {k: v if k in ("message", "kind") else restore(v) for k, v in value.items()}
    if isinstance(value, list):
        return [restore(v) for v in value]
    return value


def scrub(text: str) -> str:
    """`text` without the home directory, other absolute paths, the machine's name and anything shaped like a token."""
    here = ""
    if "/" in text:
        with suppress(OSError):  # it was deleted under us
            here = os.getcwd()
    home, here, host = _places(here)
    if "/" in text:
        for place, short in ((here, "."), (home, "~")):
            if place:
                text = re.sub(re.escape(place) + r"(?=/|$|[\s'\"`,;:)\]])", short, text)
        text = _ABSOLUTE.sub(lambda m: ".../" + m.group().rstrip("/").rsplit("/", 1)[-1], text)
    if host and host in text:
        text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "<host>", text)
    return _SECRET_VALUE.sub(HIDDEN, text)


@lru_cache(maxsize=8)
def _places(here: str) -> tuple[str, str, str]:
    home = os.path.expanduser("~")
    host = socket.gethostname()
    # A plain word as host name ("demo") would eat words of the record, and says nothing about anybody.
    if len(host) < 6 or host == "localhost" or not re.search(r"[\d.-]", host):
        host = ""
    return (home if len(home) > 1 else ""), (here if len(here) > 1 else ""), host


def typed_command(argv: list[str] | None = None) -> str:
    """The command line as the user typed it (default: `sys.orig_argv`), secrets hidden."""
    words = list(sys.orig_argv if argv is None else argv)
    if len(words) > 1 and Path(words[0]).name.startswith("python"):
        script = Path(words[1])
        if not words[1].startswith("-") and not script.suffix and script.is_absolute():
            words = [script.name, *words[2:]]  # an installed console script
        else:
            words[0] = "python"
    elif words:
        words[0] = Path(words[0]).name if Path(words[0]).is_absolute() else words[0]
    return clean_command(words)


def clean_command(command: str | list[str]) -> str:
    """One line: joined if a list, private paths and secrets removed."""
    text = command if isinstance(command, str) else shlex.join(str(word) for word in command)
    return scrub(_SECRET_OPTION.sub(rf"\1{HIDDEN}", text))

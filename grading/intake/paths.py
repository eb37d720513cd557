"""Paths that strangers chose: which are harmless, and which are not worth reading."""

from __future__ import annotations

import os
import re

from labkit.checks.tasks import Week

MAX_DEPTH = 12
MAX_PATH = 1000  # bytes
_PART = re.compile(r"week[\s_-]*0*(\d+)|capstone")
_DRIVE = re.compile(r"[A-Za-z]:")
_NOISE = frozenset({"__MACOSX", "__pycache__", "node_modules", "site-packages", "Thumbs.db", "desktop.ini"})
# nbgrader's own, beside the student's files: the time is told elsewhere, and the secret must not be shown to anyone.
EXCHANGE_FILES = frozenset({"timestamp.txt", "submission_secret.txt"})


def harmless(name: str) -> str | None:
    """None if "a/b.py" stays inside the folder it is unpacked to, on any system; else why not, as a sentence's end."""
    parts = name.split("/")
    if name.startswith("/") or _DRIVE.match(name) or ".." in parts:
        return "leads out of the folder it is in"
    if "\0" in name or any(part in ("", ".") for part in parts):
        return "has a name that is no file's"
    if len(os.fsencode(name)) > MAX_PATH or any(len(os.fsencode(part)) > 255 for part in parts):
        return "has a name that is too long"
    if len(parts) > MAX_DEPTH:
        return f"lies more than {MAX_DEPTH} folders deep"
    return None


def noise(name: str) -> bool:
    """Whether a path is what systems and tools leave about: caches, hidden files, editors' copies."""
    return any(
        part in _NOISE or part.endswith("~") or (part.startswith(".") and part not in (".", ".."))
        for part in name.split("/")
    )


def other_week(folder: str, week: Week) -> bool:
    """Whether a folder (or an inner archive) is called after another part of the course: "week14_mine" is, for week 13;
    "week13", "week13_final" and "my work" are not."""
    found, own = _PART.match(folder.lower()), _PART.match(week.package)
    return found is not None and (own is None or found[1] != own[1])

"""A file that a student misnamed, counted under its right name: what the instructor decided, beside the attempt.

    submitted/week13/anna/1.zip           as it was handed in; it is never changed
    submitted/week13/anna/1.names.json    {"collectives (1).py": "collectives.py"}

`load` reads the attempt as if the file had been called so, and tells the student. The digest of the attempt is another
one then, so the next `grade run` grades it anew.
"""

from __future__ import annotations

import json
from pathlib import Path

from grading.files import put
from grading.intake.names import harmless, shown
from labkit.errors import LabError

RENAMED = "your instructor renamed it."  # how the sentence for the student ends


def path_of(attempt: Path) -> Path:
    """Where the names of a collected attempt ("1.zip") are kept."""
    return attempt.with_suffix(".names.json")


def read_names(attempt: Path) -> dict[str, str]:
    """What of an attempt is renamed: path in it -> path under which it counts. LabError for a damaged file."""
    path = path_of(attempt)
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(names, dict) or not all(isinstance(to, str) and not harmless(to) for to in names.values()):
            raise ValueError("it must give a name inside of the hand-in for each name")
        return names
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LabError(f"{path} is damaged ({type(error).__name__}: {error}): delete it, and rename again") from None


def write_names(attempt: Path, names: dict[str, str]) -> None:
    """Keep these names; {} takes the file away."""
    if names:
        put(path_of(attempt), json.dumps(names, indent=1, ensure_ascii=False).encode())
    else:
        path_of(attempt).unlink(missing_ok=True)


def apply(files: dict[str, bytes], names: dict[str, str]) -> list[str]:
    """Rename in `files`; a sentence for the student on each."""
    told = []
    for old, new in names.items():
        if old in files:
            files[new] = files.pop(old)
            told.append(f"{shown(old)} counts as {shown(new)}: {RENAMED}")
    return told

"""The autograder's archive for Gradescope: setup.sh and run_autograder at the top, the course below course/.

It holds the tests and the solutions, as `grade run` needs them, and the class's seed, so that both give the same marks.
Later weeks and records stay out.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from grading.files import put, zipped
from grading.tree import RESULTS, tracked_files
from labkit.checks.tasks import Week
from labkit.errors import LabError

HERE = Path(__file__).parent
SETTINGS = "settings.json"
# What judging needs of requirements.lock: labkit.checks, labkit.comm, the weeks, and this package.
NEEDED = ("torch", "numpy", "pydantic", "typer", "rich", "jinja2", "pytest", "matplotlib", "tokenizers", "torchao")
_LEFT_OUT = ("benchmarks", "student")  # of grading/


def pack(week: Week, weeks: Sequence[Week], to: Path, seed: int, *, unsandboxed: bool = False) -> int:
    """Write the archive; how many files it holds. The same course and seed give the same bytes.

    unsandboxed   also where Gradescope's machine can shut nothing in: the marks say so"""
    course = week.folder.parent
    earlier = weeks[: [one.name for one in weeks].index(week.name) + 1]
    settings = {"week": week.name, "seed": seed, "unsandboxed": unsandboxed}
    tops = ("setup.sh", "run_autograder")
    files = {name: (HERE / name).read_bytes() for name in tops}
    files |= {"requirements.txt": _pins(course).encode(), f"course/{SETTINGS}": json.dumps(settings).encode()}
    for path in _course_files(course, earlier):
        files[f"course/{path.relative_to(course).as_posix()}"] = path.read_bytes()
    to.parent.mkdir(parents=True, exist_ok=True)
    put(to, zipped(dict(sorted(files.items())), tops), 0o600)  # it holds the solutions and the seed
    return len(files)


def _course_files(course: Path, weeks: Sequence[Week]) -> Iterator[Path]:
    tracked = tracked_files(course)
    for folder in ("labkit", "grading", *(week.package for week in weeks)):
        for path in sorted((course / folder).rglob("*")):
            parts = path.relative_to(course).parts
            if path.is_symlink() or not path.is_file() or "__pycache__" in parts or path.name.startswith("."):
                continue
            if RESULTS in parts[:-1] or (parts[0] == "grading" and parts[1] in _LEFT_OUT):
                continue
            if tracked is None or path.relative_to(course).as_posix() in tracked:
                yield path


def _pins(course: Path) -> str:
    """The pins of what judging needs; what these need themselves, pip finds."""
    lock = (course / "requirements.lock").read_text(encoding="utf-8")
    pins = [line for line in lock.splitlines() if re.split(r"[=<>!~\[; ]", line)[0].lower() in NEEDED]
    missing = set(NEEDED) - {re.split(r"[=<>!~\[; ]", line)[0].lower() for line in pins}
    if missing:
        raise LabError(f"requirements.lock has no pin of {', '.join(sorted(missing))}, which the autograder needs")
    return "\n".join(pins) + "\n"

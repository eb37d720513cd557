"""The student tree: which of the course's files belong to it, and what each becomes on the way.

A list of what goes in, never of what stays out: a new file of the instructors' is not released by being forgotten.

  - FILES and FOLDERS, and the folder of every released week, with its PAGES.
  - Of folders with results the pages, what these link to, and what a released week reads of its own (`records` in its
    tasks.toml): tables and pictures. The records that they were made from stay with the course.
  - Solutions become blanks (labkit.checks.markers), notebooks lose their outputs.
  - What stands between two marker lines is the instructors' and is cut out, in any text file:

        <!-- BEGIN INSTRUCTOR -->        in Markdown        # BEGIN INSTRUCTOR        elsewhere
        ...                                                 ...
        <!-- END INSTRUCTOR -->                             # END INSTRUCTOR

  - What stands between `BEGIN WITH week16` and `END WITH week16`, in the same form, is cut out until that week is
    released: a page of today does not link to records of a later week.
  - REWRITES changes the few lines that mean something else without grading/ and tests/.
  - AGENTS.md comes from student/AGENTS.md here.

In a git checkout only files that git tracks are released.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.checks.markers import strip, strip_notebook
from labkit.checks.tasks import Week
from labkit.errors import LabError

FILES = (
    ".devcontainer/devcontainer.json",
    ".dockerignore",
    "CITATION.cff",
    "Dockerfile",
    "LICENSE",
    "LICENSE-text",
    "Makefile",
    "README.md",
    *(f"docs/{name}.md" for name in ("students", "how-labs-work", "glossary", "watching")),
    "docs/images/autopsy.svg",
    "docs/images/chunk-grid.png",
    "environment.yml",
    "pyproject.toml",
    "requirements.lock",
    "requirements-watch.lock",
    "requirements-container.txt",
    "setup.sh",
    ".gitignore",
)
RESULTS = "results"  # a folder with results has this name, at the top and in a week
FOLDERS = ("labkit", RESULTS)
PAGES = {  # of a released week
    "week15": ("PARALLELISM_GUIDE.md", *(f"docs/images/plan-{name}.png" for name in ("map", "anatomy", "errors"))),
    "week16": (
        *(f"docs/{name}.md" for name in ("verdict", "renters", "renting-details", "fp8-settings")),
        *(
            f"docs/images/{name}.png"
            for name in ("renter-answer", "renter-answer-h100", "verdict-study", "verdict-repeats")
        ),
    ),
}
# A folder of labkit that holds what tasks of earlier weeks ask for: the week with which it is released.
LATER = {"labkit/plan": "week15"}
AGENTS = Path(__file__).parent / "student" / "AGENTS.md"
SOLUTIONS = "solutions"  # the folder of handed-out solutions in the student tree

# (pattern, replacement). `make test` tells a student's points, since the tests of labkit stay with the instructors, and
# those of a week are what `lab check` runs.
_CHECKS = "set up .venv and check your work: the points of every week here\n"
REWRITES = {
    "Makefile": (
        (r"^# make test .*\n", f"# make test   {_CHECKS}"),
        (r"^\t@\$\(VENV\)/bin/python -m pytest.*\n", "\t@$(VENV)/bin/lab check\n"),
        (r"^(# JOBS=|JOBS +\?=).*\n", ""),
    ),
    "README.md": ((r"^    make test .*\n", f"    make test     {_CHECKS}"),),
    "docs/how-labs-work.md": ((r"\.\./grading/student/AGENTS\.md", "../AGENTS.md"),),
    "pyproject.toml": (
        (r', "grading\*"', ""),
        (r'^testpaths = \["tests"\]', 'testpaths = ["week*", "capstone*"]'),
        (r'^grade = "grading\..*\n', ""),
    ),
}
NO_GRADING = ("Makefile", "pyproject.toml")  # where a word about grading is a command that students do not have

CACHES = ("__pycache__", ".ipynb_checkpoints", ".pytest_cache")
_LEFT_OUT = (*CACHES, "runs", "build")  # where there is no git to ask; hidden files stay out too
_BINARY = (".png", ".pdf", ".npy", ".npz", ".pt", ".gz")
_FOR = r"(?P<who>INSTRUCTOR|WITH (?P<week>week\d+|capstone))"
_MARKER = re.compile(rf"^[ \t]*(?:# |(?P<html><!-- ))(?P<what>BEGIN|END) {_FOR}(?(html) -->)[ \t]*$")
_LIKE = re.compile(r"(?i:(BEGIN|END)\s+INSTRUCTOR)|(BEGIN|END)\s+WITH\s")
_SOLUTION = re.compile(r"(BEGIN|END)\s+SOLUTION")
_LINK = re.compile(r"\]\(([^)#\s]+)")
_IMPORTS = re.compile(r"^[ \t]*(?:from|import)[ \t]+((?:week\d+|capstone)\w*)", re.MULTILINE)


@dataclass(frozen=True)
class File:
    """One file of the tree: its bytes, and whether it may be executed."""

    data: bytes
    executable: bool = False


@dataclass
class Tree:
    """Files by path ("week13_allreduce/collectives.py"), what they cover, and what was passed over.

    covers      top-level names: a path below one of them that is not in `files` belongs to the course no more
    untracked   files in released folders that git does not know
    """

    files: dict[str, File] = field(default_factory=dict)
    covers: tuple[str, ...] = ()
    untracked: list[str] = field(default_factory=list)


def student_tree(source: Path, weeks: Sequence[Week], here: Sequence[Week] = ()) -> Tree:
    """The student tree with these weeks, from the course in `source`.

    here   weeks that students have already: what stands outside of the weeks' folders for them stays in the tree

    LabError for a missing file, a marker that is none, a solution that would stay in, or a week that imports a week
    which is not released."""
    tracked, released = tracked_files(source), [week.package for week in weeks]
    names = [week.name for week in (*weeks, *here)]
    files = (*FILES, *(page for week in names for page in PAGES.get(week, ())))
    tree = Tree(covers=(*files, "AGENTS.md", *FOLDERS, *released))
    for name in files:
        if not (source / name).is_file():
            raise LabError(f"{source} has no {name}: release from a whole copy of the course")
        tree.files[name] = File(_for_students(name, (source / name).read_bytes(), names))
    tree.files["AGENTS.md"] = File(AGENTS.read_bytes())
    records = {f"{week.package}/{RESULTS}": week.records for week in weeks}
    for folder in (*FOLDERS, *released):
        for path in _without_records(source, _walk(source, folder), records, names):
            name = path.relative_to(source).as_posix()
            if any(name.startswith(f"{part}/") and week not in names for part, week in LATER.items()):
                continue
            if tracked is not None and name not in tracked:
                tree.untracked.append(name)
                continue
            data = _for_students(name, path.read_bytes(), names, blanks=folder in released)
            if folder in released:
                _no_leak(name, data, released)
            tree.files[name] = File(data, os.access(path, os.X_OK))
    return tree


def solutions_tree(source: Path, weeks: Sequence[Week]) -> Tree:
    """The files of these weeks that hold solutions, as they are in the source, below `solutions/`."""
    tracked = tracked_files(source)
    tree = Tree(covers=tuple(f"{SOLUTIONS}/{week.package}" for week in weeks))
    for week in weeks:
        for path in _walk(source, week.package):
            name = path.relative_to(source).as_posix()
            if path.suffix not in (".py", ".ipynb") or (tracked is not None and name not in tracked):
                continue
            text = without_instructors(_decoded(name, path.read_bytes()), name)
            if _SOLUTION.search(text):
                text = without_outputs(text) if path.suffix == ".ipynb" else text
                tree.files[f"{SOLUTIONS}/{name}"] = File(text.encode())
    return tree


def without_instructors(text: str, name: str, weeks: Sequence[str] = ()) -> str:
    """The text without what stands between instructor markers, and between those of a week that is not in `weeks`.
    LabError names the line of an unbalanced one."""
    kept, begun, who, cut = [], 0, "", False
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        bare = line.rstrip("\r\n")
        marker = _MARKER.match(bare)
        if marker:
            if marker["what"] == "BEGIN" if begun else marker["what"] == "END":
                raise LabError(f"{name}:{number}: BEGIN {marker['who']} and END must come in pairs, not nested")
            if begun and marker["who"] != who:
                raise LabError(f"{name}:{number}: END {marker['who']} after BEGIN {who}, which must end first")
            begun, who = (0 if begun else number), marker["who"]
            cut = marker["week"] not in weeks
        elif _LIKE.search(bare):
            raise LabError(
                f"{name}:{number}: this is almost an instructor marker; give it a line of its own: "
                f"'# BEGIN INSTRUCTOR' or '# BEGIN WITH week16', or '<!-- BEGIN INSTRUCTOR -->' in Markdown"
            )
        elif not begun or not cut:
            kept.append(line)
    if begun:
        raise LabError(f"{name}:{begun}: BEGIN {who} without END {who}")
    return "".join(kept)


def without_outputs(text: str) -> str:
    """A notebook's JSON text without outputs and execution counts, in the form that `strip_notebook` writes."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"]).splitlines(keepends=True)
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _for_students(name: str, data: bytes, weeks: Sequence[str], blanks: bool = False) -> bytes:
    if name.endswith(_BINARY):
        return data
    text = without_instructors(_decoded(name, data), name, weeks)
    if blanks:  # not in labkit, where markers are only spoken of
        text = _holes_out(name, text)
    for pattern, new in REWRITES.get(name, ()):
        text, count = re.subn(pattern, new, text, flags=re.MULTILINE)
        if not count:
            raise LabError(
                f"{name} has no line like {pattern!r}, which students get in another form: "
                f"bring REWRITES in grading/tree.py up to date"
            )
    if name in NO_GRADING and re.search(r"grading|/grade\b", text):
        raise LabError(
            f"{name} still names grading, which students do not have: put '# BEGIN INSTRUCTOR' and "
            f"'# END INSTRUCTOR' around it"
        )
    return text.encode()


def _holes_out(name: str, text: str) -> str:
    if name.endswith(".py"):
        return strip(text, name)
    if name.endswith(".ipynb"):
        try:
            return strip_notebook(text, name)
        except (ValueError, TypeError, KeyError):
            raise LabError(f"{name} is no notebook: it is not JSON with cells") from None
    return text


def _no_leak(name: str, data: bytes, released: Iterable[str]) -> None:
    text = data.decode(errors="replace")
    if _SOLUTION.search(text):
        raise LabError(
            f"{name} would be released with a solution in it: markers work in modules, and in code and "
            f"Markdown cells of notebooks"
        )
    if name.endswith(".py"):
        for package in _IMPORTS.findall(text):
            if package not in released:
                raise LabError(f"{name} imports {package}: release that week as well")


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise LabError(
            f"{name} is not UTF-8 text; a new kind of binary file belongs into _BINARY in grading/tree.py"
        ) from None


def _walk(source: Path, folder: str) -> list[Path]:
    """All files below a folder, sorted; caches and hidden files left out. A link is an error: it may lead anywhere."""
    if not (source / folder).is_dir():
        raise LabError(f"{source} has no {folder}/: release from a whole copy of the course")
    found = []
    for path in sorted((source / folder).rglob("*")):
        parts = path.relative_to(source).parts
        if any(part.startswith(".") or part in _LEFT_OUT or part.endswith(".egg-info") for part in parts):
            continue
        if path.is_symlink():
            raise LabError(f"{path.relative_to(source)} is a link: a release holds plain files only")
        if path.is_file() and path.suffix not in (".pyc", ".pyo"):
            found.append(path)
    return found


def _without_records(
    source: Path, paths: list[Path], declared: Mapping[str, Sequence[str]], weeks: Sequence[str]
) -> Iterator[Path]:
    """These files; of folders with results only pages, what pages link to, and what is declared: {folder: patterns}."""
    wanted = {path for folder, patterns in declared.items() for one in patterns for path in (source / folder).glob(one)}
    for page in paths:
        if page.suffix == ".md":
            text = without_instructors(_decoded(page.name, page.read_bytes()), page.name, weeks)
            wanted |= {page, *(Path(os.path.normpath(page.parent / link)) for link in _LINK.findall(text))}
    for path in paths:
        if RESULTS not in path.relative_to(source).parts[:-1] or path in wanted:
            yield path


def tracked_files(source: Path) -> set[str] | None:
    """Paths that git tracks; None where the course is not a git checkout."""
    if not (source / ".git").exists():
        return None
    # Also where another account installed the course, whose programs this one runs anyway.
    command = ["git", "-c", "safe.directory=*", "-C", str(source), "ls-files", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error).encode()
        why = said.decode(errors="replace").strip().partition("\n")[0]
        raise LabError(f"git cannot be asked which files belong to the course: {why}") from None
    return set(done.stdout.decode().split("\0")) - {""}

"""Attacks by what is handed in: files that Python or the grader would take for its own, zips that unpack elsewhere.

`arrange` is the defence; without it (a plain copy of what was handed in over the course's folder, as most autograders
do) each of these works.
"""

import importlib.util
import py_compile
import shutil
from pathlib import PurePosixPath

import pytest

from grading.intake.arrange import arrange
from grading.intake.submission import Submission, read_submission
from grading.judge import laid_out
from grading.sandbox.runner import SandboxRunner
from labkit.checks.runner import Job
from tests.grading.intake.handed_in import COST, MINE, PACKAGE, RING, TREE, make_week, put_all, zipped
from tests.grading.sandbox.attacking import DEADLINE, readable


def turn(*lines):
    return "\n    ".join(("def turn():", *lines, ""))


MINE_OR_1 = "return getattr(m, 'mine', 1)"
# Attack: the files, and what is called: 99 if the attack works, and 1 if it does not.
HONEST = {"ring.py": RING, "cost.py": COST, "stretch/tree.py": TREE}
HIJACKS = {
    "a package in a module's place": ({"scenarios/__init__.py": "def drive(): return 99\n"}, "scenarios.drive"),
    "the package itself": (
        {"__init__.py": "import sys\nsys.mine = 99\n", "ring.py": turn("import sys as m", MINE_OR_1)},
        "ring.turn",
    ),
    "a module of Python's": (
        {"../netrc.py": "mine = 99\n", "ring.py": turn("import netrc as m", MINE_OR_1)},
        "ring.turn",
    ),
    "a part of torch's": (
        {
            "../tests/__init__.py": "",
            "../sitecustomize.py": "mine = 99\n",
            "ring.py": turn("try:", "    import sitecustomize as m", "except ImportError:", "    m = 0", MINE_OR_1),
        },
        "ring.turn",
    ),
}


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    return make_week(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory, week):
    """What a function gives for files laid out; all in one sandbox, whose folder is exchanged."""
    folder = readable(tmp_path_factory.mktemp("run"))
    with SandboxRunner(folder, deadline=DEADLINE, budget=1000.0) as runner:

        def call(files, function):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            readable(put_all(folder, files))
            reply = runner.run(Job(folder, PACKAGE, function, ((),), {}, False, modules=("ring",)))
            assert reply.verdict == "passed", reply.text
            return reply.values[0]

        yield call


def handed_in(files):
    """A submission with these files in the week's folder ("../x" beside it)."""
    return Submission.of(
        "eve",
        {
            name[3:] if name.startswith("../") else f"{PACKAGE}/{name}": text.encode()
            for name, text in {**HONEST, **files}.items()
        },
    )


@pytest.mark.parametrize("name", HIJACKS)
def test_files_that_would_be_taken_for_anothers(week, ran, name):
    files, function = HIJACKS[name]
    submission = handed_in(files)
    assert ran(arrange(submission, week).files, function) == 1
    course = {f"{PACKAGE}/{path.relative_to(week.folder)}": path.read_bytes() for path in week.folder.rglob("*.py")}
    assert ran({**course, **submission.files}, function) == 99


def test_compiled_files_do_not_stand_for_the_courses(week, ran, tmp_path):
    """A .pyc of the right age and size would be run in place of its source."""
    source = tmp_path / "clock.py"
    source.write_text("ticks = 9\n")
    compiled = tmp_path / "clock.pyc"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), str(compiled), doraise=True, invalidation_mode=unchecked)
    name = PurePosixPath(importlib.util.cache_from_source("clock.py")).name
    files = {
        f"{PACKAGE}/given/__pycache__/{name}": compiled.read_bytes(),
        f"{PACKAGE}/ring.py": turn("from .given import clock", "return clock.ticks").encode(),
    }
    package = arrange(Submission.of("eve", files), week).files
    assert ran(package, "ring.turn") == 1
    assert ran({**package, **files}, "ring.turn") == 9


HOSTILE = [
    "../../../../tmp/out.py", "/etc/cron.d/job.py", "C:\\out.py", "..\\..\\out.py", "week91_rings/../../out.py",
    "week91_rings/ring.py/inner.py", "week91_rings/ring.py/notes.txt", "mine.py/x.py", "mine.py", "a//b.py", "./x.py",
    "con.py", "week91_rings/\u202eyp.evil.py", "week91_rings/r\u0131ng.py", "week91_rings/RING.PY",
    "week91_rings/\ufb01ne.py", "week91_rings/e\u0301.py", "week91_rings/\xe9.py", "week91_rings/\udcff.py",
    "week91_rings/x\n.py", "week91_rings/" + "x" * 300 + ".py", "d/" * 40 + "x.py", "week91_rings/lib.so",
    "week91_rings/ring.cpython-311-x86_64-linux-gnu.so", "week91_rings/x.pth", "x.pth", "conftest.py",
    "week91_rings/conftest.py", "pytest.ini", "usercustomize.py", "labkit/__init__.py", "grading/__init__.py",
    "torch.py", "numpy/__init__.py", "json.py", "week91_rings.py", "labkit_inside/__init__.py", "__main__.py",
    "week91_rings/__main__.py",
]  # fmt: skip
NEVER = {
    "conftest.py", "sitecustomize.py", "usercustomize.py", "torch.py", "json.py", "week91_rings.py", "x.pth",
    "pytest.ini", "labkit/__init__.py", "grading/__init__.py", "numpy/__init__.py",
}  # fmt: skip


def test_a_zip_of_hostile_names_is_laid_out_inside_its_folder(week, tmp_path):
    """Whatever its names, it ends as plain files below its own folder, and the judge goes on."""
    names = [*(f"{PACKAGE}/{name}" for name in MINE), *HOSTILE]
    (tmp_path / "1.zip").write_bytes(
        zipped(
            [
                (name.encode("utf-8", "surrogateescape").decode("latin-1") if "\udcff" in name else name, RING)
                for name in names
            ],
            links={"link.py": "/etc/passwd"},
        )
    )
    package = arrange(read_submission(tmp_path / "1.zip"), week)
    with laid_out(package, tmp_path / "work" / "eve") as folder:
        for path in folder.rglob("*"):
            assert not path.is_symlink()
        laid = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in tmp_path.iterdir()} == {"1.zip", "work"}
    assert [path.name for path in (tmp_path / "work").rglob("*")] == ["eve"]  # empty again, and nothing beside it
    assert not laid & NEVER and not any(PurePosixPath(name).name == "conftest.py" for name in laid)
    theirs = {name for name in laid if not name.startswith(PACKAGE)} - set(package.course)
    assert all(name.endswith((".py", ".txt")) for name in theirs)
    assert set(package.course) <= laid and all(name.startswith(f".course/{PACKAGE}/") for name in package.course)
    assert package.files[f"{PACKAGE}/ring.py"] == RING.encode()

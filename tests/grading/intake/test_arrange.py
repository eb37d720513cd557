"""The folder that a student's code runs in: theirs where it is theirs, the course's everywhere else."""

import contextlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grading.intake import extras
from grading.intake.arrange import arrange
from grading.intake.misnamed import refuse_rename
from grading.intake.notebook import grade_cells
from grading.intake.released import released_week
from grading.intake.submission import Submission, read_submission
from grading.intake.wrong_week import another_week
from labkit.checks.handin import Manifest
from labkit.checks.markers import strip
from labkit.checks.tasks import find_weeks
from labkit.errors import LabError
from tests.grading.intake.handed_in import COST, MINE, PACKAGE, RING, TREE, make_week, notebook, put, zipped

COURSE = {
    "tasks.toml", "__init__.py", "README.md", "ring.py", "cost.py", "bench.py", "stretch/__init__.py",
    "stretch/tree.py", "given/__init__.py", "given/clock.py", "given/cost.py", "data/wires.txt", "scenarios.py",
}  # fmt: skip
LAB = {"lab.ipynb": notebook(("task-91-3", "my answer"))}


def submission(files):
    return Submission.of("anna", {n: text if isinstance(text, bytes) else text.encode() for n, text in files.items()})


@pytest.fixture
def arranged(week):
    return lambda files: arrange(submission(files), week)


def at(package, name):
    return package.files[f"{PACKAGE}/{name}"].decode()


def below(folder, files):
    return {f"{folder}/{name}": text for name, text in files.items()}


@pytest.fixture
def handed_out(week):
    return {name: strip((week.folder / name).read_text()) for name in ("ring.py", "cost.py")}


LAYOUTS = ["", f"{PACKAGE}/", "WEEK 91/my work/", "week91_final/", "week.zip/", f"Übung/محمد/{PACKAGE}/"]


@pytest.mark.parametrize("where", LAYOUTS)
def test_layouts(arranged, where):
    package = arranged({f"{where}{name}": text for name, text in (MINE | LAB).items()})
    assert set(package.files) == {f"{PACKAGE}/{name}" for name in COURSE}
    assert {name: at(package, name) for name in MINE} == MINE
    assert not package.missing and not package.notes
    assert package.used["ring"] == f"{where}ring.py" and package.notebook == f"{where}lab.ipynb"
    assert package.course[f".course/{PACKAGE}/ring.text"] not in MINE.values(), "where theirs cannot be imported"
    assert not any(word in data for data in package.course.values() for word in (b"secret", b"expected", b"SOLUTION"))


def test_what_is_the_courses_stays_the_courses(arranged):
    evil = (
        "scenarios.py/x.py", "data/wires.txt/x.py", "scenarios.py", "given/clock.py", "data/wires.txt", "bench.py",
        "__init__.py", "test_week91.py", "tasks.toml", "scenarios/__init__.py", "given.py", "ring/__init__.py",
        "results/x.py", "stretch/conftest.py",
    )  # fmt: skip
    package = arranged(below(PACKAGE, MINE | dict.fromkeys(evil, "evil") | {"given/cost.py": "given = 1"}))
    assert not any(b"evil" in data for data in package.files.values())
    assert set(package.files) == {f"{PACKAGE}/{name}" for name in COURSE}
    note = next(note for note in package.notes if note.startswith("The course's own text"))
    assert "__init__.py, bench.py, given/clock.py, scenarios.py" in note and "given/cost.py" not in note
    assert any("given.py" in note for note in package.notes)


def test_own_modules_come_along(arranged, monkeypatch):
    own = {"helper.py": "h", "tools/deep.py": "d", "table.json": "{}", "given/more.py": "m"}
    beside = {"util.py": "u", "mylib/__init__.py": "l"}
    never = (
        "json.py", "numpy/__init__.py", "labkit/x.py", "sitecustomize.py", "week90_other/ring.py", "tests/test_x.py",
    )  # fmt: skip
    files = below(PACKAGE, MINE | own | {"picture.png": "x"}) | beside | {"Makefile": "x"}
    package = arranged(files | dict.fromkeys(never, "evil"))
    assert set(package.files) - {f"{PACKAGE}/{name}" for name in COURSE} == {*below(PACKAGE, own), *beside}
    assert not any(b"evil" in data for data in package.files.values())
    (note,) = [note for note in package.notes if note.startswith("Not used")]
    assert "json.py, numpy/__init__.py, sitecustomize.py." in note and "week90" not in note
    monkeypatch.setattr(extras, "MAX_EXTRA", 5)
    package = arranged(MINE | {f"m{n}.py": "x" for n in range(9)})
    assert len(package.files) == len(COURSE) + 5 and "m5.py" in package.notes[0]


@pytest.mark.parametrize("renamed", ["ring (1).py", "RING.PY", "ring.py.txt", "final/x.py"])
def test_a_renamed_module_is_missing_and_the_sentence_names_it(arranged, renamed):
    package = arranged({renamed: RING, "cost.py": COST, **LAB})
    assert package.lookalikes == {"ring": renamed, "stretch.tree": ""} and renamed in package.missing["ring"]
    assert "NotImplementedError" in at(package, "ring.py")  # so that what imports it still can
    assert at(package, "cost.py") == COST and "cost" not in package.missing


def test_what_is_the_courses_or_untouched_is_not_taken_for_a_missing_module(arranged, handed_out):
    for name, text in (("given/clock.py", RING), ("ring (1).py", handed_out["ring.py"]), ("half.py", RING[:20])):
        assert arranged({"cost.py": COST, name: text}).lookalikes["ring"] == "", name
    package = arranged({"ring.py": handed_out["ring.py"], "mine.py": RING})
    assert any("ring.py stands as it was handed out. mine.py looks like it" in note for note in package.notes)


def test_a_file_that_lost_its_folder_counts(arranged):
    """Canvas gives loose files back without their folders, and the stretch tasks were lost without a word."""
    package = arranged({"ring.py": RING, "cost.py": COST, "tree.py": TREE})
    assert not package.missing and package.used["stretch.tree"] == "tree.py"
    assert at(package, "stretch/tree.py") == TREE
    both = {"ring.py": RING, "stretch/tree.py": TREE + "# whole\n", "tree.py": "x = 1\n"}
    assert at(arranged(both), "stretch/tree.py") == TREE + "# whole\n", "the one in its place goes first"


@pytest.mark.parametrize(
    "content, why",
    [
        (RING.encode("utf-16"), "is UTF-16 text"),
        (b"x = '\xe9'\n", "is not UTF-8 text"),
        (b"\0\0", "holds zero bytes"),
        (b"# coding: rot13\n", "in the encoding rot13"),
        (b"x" * 2_000_000, "has 2.0 MB"),
        (b"def (", ""),  # what is only wrong Python, Python may judge itself
        (b"\xef\xbb\xbf# coding: utf-8\r\n", ""),
        (b"# coding: latin-1\nx = '\xe9'\n", ""),
    ],
)
def test_what_cannot_be_a_module(arranged, content, why):
    package = arranged({"ring.py": content, "cost.py": COST})
    assert ("ring" in package.missing) == bool(why) and why in package.missing.get("ring", "")
    assert at(package, "cost.py") == COST
    assert (package.files[f"{PACKAGE}/ring.py"] == content) == (not why)


def test_several_copies_and_which_is_used(arranged, handed_out):
    """The student tree as it was handed out, and the work beside it; or the work in a folder of its own."""
    package = arranged(
        below(PACKAGE, {"ring.py": RING, "cost.py": COST})
        | below("backup", {"ring.py": "old", "cost.py": COST})
        | below("zz", {"ring.py": handed_out["ring.py"]})
    )
    assert at(package, "ring.py") == RING and at(package, "cost.py") == COST
    (note,) = [note for note in package.notes if "more than one" in note]
    assert f"{PACKAGE}/ring.py is used, and not backup/ring.py, zz/ring.py" in note
    old = {name: text.replace("\n", "\r\n") + "\n" for name, text in handed_out.items()}
    package = arranged(below(PACKAGE, old) | {"ring.py": RING})
    assert at(package, "ring.py") == RING and "ring" not in package.missing and "cost" not in package.missing
    deep = {"cost.py": COST, "ring.py": handed_out["ring.py"], "stretch/tree.py": TREE}
    package = arranged(below("deep/work", deep) | {"ring.py": RING, "cost.py": "x = 1"})
    assert at(package, "cost.py") == COST and at(package, "ring.py") == RING


def test_same_names_that_are_other_files(arranged):
    """Of the library, of another week, of the week's given files, and the solutions that were handed out."""
    others = ("labkit/comm", "week92_next", f"solutions/{PACKAGE}", "capstone", "Week92-old")
    files = {f"{folder}/ring.py": "x" for folder in others} | {f"{PACKAGE}/given/cost.py": "3"}
    package = arranged(files | {f"{PACKAGE}/stretch/tree.py": TREE})
    assert set(package.missing) == {"ring", "cost"} and at(package, "stretch/tree.py") == TREE


def test_what_lab_handin_packed_counts_where_it_says(week):
    """No other copy, wherever it lies and however it is called."""
    files = below(PACKAGE, {"ring.py": RING, "lab.ipynb": LAB["lab.ipynb"]}) | {"cost.py": COST, "beside/ring.py": "x"}
    made = submission(files)
    made.manifest = Manifest(format=1, week="week91", made=datetime.now(UTC), files={}, versions={})
    package = arrange(made, week)
    assert package.used == {"ring": f"{PACKAGE}/ring.py"} and set(package.missing) == {"cost", "stretch.tree"}
    assert package.notebook == f"{PACKAGE}/lab.ipynb"
    made.manifest = Manifest(format=1, week="week92", made=datetime.now(UTC), files={}, versions={})
    assert arrange(made, week).used.keys() == {"ring", "cost"}, "of another week it says nothing"


@pytest.mark.parametrize(
    "files, old, new, sentence",
    [
        ({"Ring.py": RING}, "Ring.py", "ring.py", None),
        ({"mine.ipynb": "{}"}, "mine.ipynb", "lab.ipynb", None),
        ({"a.py": RING}, "a.py", "helper.py", None),
        ({"Ring.py": RING}, "ringg.py", "ring.py", "holds no ringg.py; did you mean"),
        ({"Ring.py": RING}, "Ring.py", "../ring.py", "leads out"),
        ({"Ring.py": RING}, "Ring.py", "ring.txt", "reads no file ring.txt"),
        ({"Ring.py": RING, "ring.py": "x = 1"}, "Ring.py", "ring.py", "holds a ring.py already"),
    ],
)
def test_under_which_names_a_misnamed_file_may_count(week, handed_out, files, old, new, sentence):
    with pytest.raises(LabError, match=sentence) if sentence else contextlib.nullcontext():
        refuse_rename(submission(files), week, old, new)
    if not sentence and new == "ring.py":  # the untouched one gives way
        refuse_rename(submission(files | {"ring.py": handed_out["ring.py"]}), week, old, new)


# -- notebooks --------------------------------------------------------------------------------------------------------
def test_another_weeks_files_are_reported(arranged, week):
    """One student's alone: of a whole download `grade collect` says so."""
    other, fifteen = (next(one for one in find_weeks() if one.name == name) for name in ("week14", "week15"))

    def modules(one):
        found = {name.split(".")[-1] for task in one.tasks if task.kind == "auto" for name in task.modules}
        return {f"{module}.py": "x = 1" for module in found}

    assert another_week(submission(modules(other)), week) == ("week14", False)
    assert any("week14" in note for note in arranged(modules(other)).notes)
    assert not any("look like" in note for note in arranged(modules(other) | {"ring.py": RING}).notes)
    assert "overlap.py" in modules(fifteen), "weeks 14 and 15 both have one: the larger share of a week's own tells"
    assert another_week(submission(modules(fifteen)), fifteen) == ("", True)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"cells": 3}', b"\xff\xfe", b"[" * 200_000, b"9" * 10_000])
def test_a_broken_notebook_costs_nothing_else(arranged, content):
    package = arranged(MINE | {"lab.ipynb": content})
    assert package.notebook is None and not package.missing and len(package.notes) == 1


def test_odd_cells_are_data():
    cells = [
        3,
        {},
        {"cell_type": 1, "source": "x", "id": 5},
        {"metadata": {"nbgrader": {"grade_id": "task-91-3"}}},
        {"id": "task-91-4", "metadata": None},
        {"metadata": {"labkit": {"grade_id": ["task-91-3"]}, "nbgrader": {"grade_id": "task-91-5"}}},
    ]
    assert grade_cells(("\ufeff" + json.dumps({"cells": cells})).encode()) == {"task-91-3", "task-91-4", "task-91-5"}


def test_the_notebook_with_the_grade_cells_is_taken(arranged):
    package = arranged(MINE | {"lab.ipynb": notebook(), "lab (1).ipynb": LAB["lab.ipynb"]})
    assert package.notebook == "lab (1).ipynb" and len(package.notes) == 1 and not package.missing
    package = arranged({"anna.ipynb": LAB["lab.ipynb"]})
    assert set(package.missing) == {"ring", "cost", "stretch.tree"} and package.notebook == "anna.ipynb"
    assert any("none of the modules" in note for note in package.notes)


# -- the course's own side --------------------------------------------------------------------------------------------
def test_no_solution_no_test_no_result_is_in_it_and_a_change_of_the_course_is_seen(
    arranged, week, handed_out, tmp_path
):
    package = arranged({})
    assert set(package.files) == {f"{PACKAGE}/{name}" for name in COURSE}
    assert not any(word in data for data in package.files.values() for word in (b"secret", b"expected", b"SOLUTION"))
    assert at(package, "ring.py") == handed_out["ring.py"] and at(package, "given/clock.py") == "ticks = 1\n"
    put(week.folder / "given/clock.py", "ticks = 22\n")
    assert at(arranged({}), "given/clock.py") == "ticks = 22\n"
    path = put(tmp_path / "1.zip", zipped({f"{PACKAGE}/cost.py": COST}, links={f"{PACKAGE}/ring.py": "/etc/passwd"}))
    assert "is a link" in arrange(read_submission(path), week).missing["ring"]


def test_only_what_git_tracks_is_laid_out(tmp_path):
    week = make_week(tmp_path)

    def run(*words):
        return os.spawnvp(os.P_WAIT, "git", ["git", "-C", str(tmp_path), *words])

    assert run("init", "-q") == 0 and run("add", ".") == 0
    put(week.folder / "my_notes.py", "the solution")
    assert set(arrange(Submission("x"), week).files) == {f"{PACKAGE}/{name}" for name in COURSE}
    assert run("rm", "-q", "--cached", f"{PACKAGE}/ring.py") == 0
    put(week.folder / "cost.py", "changed = 1\n")
    with pytest.raises(LabError, match=r"has no ring.py, .* or git does not track it"):
        arrange(Submission("x"), week)


def test_the_reference_of_this_course_is_laid_out_whole():
    for week in find_weeks(Path(__file__).resolve().parents[3]):
        released = released_week(week)
        mine = {f"{week.package}/{path}": (week.folder / path).read_bytes() for path in released.modules.values()}
        package = arrange(Submission.of("reference", mine), week)
        assert mine.items() <= package.files.items() and not package.missing
        assert not [note for note in package.notes if "notebook" not in note]


@pytest.mark.parametrize(
    "content, sentence",
    [("### BEGIN SOLUTION 91.2 it\n", "never ends"), (b"\xff", "is not UTF-8 text"), (None, "is a link")],
)
def test_a_fault_of_the_course_is_the_instructors(week, tmp_path, content, sentence):
    (week.folder / "cost.py").unlink()
    (week.folder / "cost.py").symlink_to(tmp_path) if content is None else put(week.folder / "cost.py", content)
    with pytest.raises(LabError, match=sentence):
        arrange(Submission("x"), week)

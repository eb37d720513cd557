"""The folder that a student's code runs in: theirs where it is theirs, the course's everywhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from grading.intake import Submission, arrange, find_submissions, load
from grading.intake.mistaken import another_week
from grading.intake.released import released_week
from labkit.checks.markers import strip
from labkit.checks.tasks import find_weeks
from labkit.errors import LabError
from tests.grading.intake.handed_in import COST, MINE, PACKAGE, RING, TREE, make_week, notebook, put, put_all, zipped

COURSE = {
    "tasks.toml",
    "__init__.py",
    "README.md",
    "ring.py",
    "cost.py",
    "bench.py",
    "stretch/__init__.py",
    "stretch/tree.py",
    "given/__init__.py",
    "given/clock.py",
    "given/cost.py",
    "data/wires.txt",
    "scenarios.py",
}
LAB = {"lab.ipynb": notebook(("task-91-3", "my answer"))}


def at(package, name):
    return package.files[f"{PACKAGE}/{name}"].decode()


def below(folder, files):
    return {f"{folder}/{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    "where", ["", f"{PACKAGE}/", "anna/", f"anna/{PACKAGE}/", "WEEK 91/my work/", "week91_final/", "week.zip/"]
)
@pytest.mark.parametrize("zip_it", [False, True])
def test_layouts(folder, arranged, where, zip_it):
    files = (
        {f"{where}{name}": text for name, text in (MINE | LAB).items()}
        if where != "week.zip/"
        else {"week.zip": zipped(MINE | LAB)}
    )
    files["__MACOSX/._ring.py"] = "x"
    if zip_it:
        put(folder / "anna.zip", zipped(files))
    else:
        put_all(folder / "anna" / "week91", files)
    package = arranged()
    assert set(package.files) == {f"{PACKAGE}/{name}" for name in COURSE}
    assert {name: at(package, name) for name in MINE} == MINE
    assert not package.missing and not package.notes
    assert package.used["ring"] == f"{where}ring.py"
    assert package.course[f".course/{PACKAGE}/ring.text"] not in MINE.values(), "where theirs cannot be imported"
    assert not any(word in data for data in package.course.values() for word in (b"secret", b"expected", b"SOLUTION"))
    assert package.notebook.answers() == {"task-91-3": "my answer"}


def test_no_solution_no_test_no_result_is_in_it(folder, arranged, week):
    (folder / "anna").mkdir()
    package = arranged()
    assert set(package.files) == {f"{PACKAGE}/{name}" for name in COURSE}
    assert not any(word in data for data in package.files.values() for word in (b"secret", b"expected", b"SOLUTION"))
    assert at(package, "ring.py") == strip((week.folder / "ring.py").read_text())


def test_what_is_the_courses_stays_the_courses(folder, arranged):
    put(
        folder / "eve.zip",
        zipped(
            below(
                PACKAGE,
                MINE
                | {
                    "scenarios.py/x.py": "evil",
                    "data/wires.txt/x.py": "evil",
                    "scenarios.py": "evil",
                    "given/clock.py": "evil",
                    "data/wires.txt": "evil",
                    "bench.py": "evil",
                    "__init__.py": "evil",
                    "test_week91.py": "evil",
                    "tasks.toml": "evil",
                    "scenarios/__init__.py": "evil",
                    "given.py": "evil",
                    "ring/__init__.py": "evil",
                    "results/x.py": "evil",
                    "stretch/conftest.py": "evil",
                    "given/cost.py": "given = 1",
                },
            )
        ),
    )
    package = arranged()
    assert not any(b"evil" in data for data in package.files.values())
    assert set(package.files) == {f"{PACKAGE}/{name}" for name in COURSE}
    assert at(package, "given/clock.py") == "ticks = 1\n"
    note = next(note for note in package.notes if note.startswith("The course's own text"))
    assert "__init__.py, bench.py, given/clock.py, scenarios.py" in note and "given/cost.py" not in note
    assert any("given.py" in note for note in package.notes)


def test_own_modules_come_along(folder, arranged):
    put_all(
        folder / "anna",
        below(
            PACKAGE,
            MINE
            | {"helper.py": "h", "tools/deep.py": "d", "table.json": "{}", "picture.png": "x", "given/more.py": "m"},
        )
        | {
            "util.py": "u",
            "mylib/__init__.py": "l",
            "json.py": "evil",
            "numpy/__init__.py": "evil",
            "labkit/x.py": "evil",
            "sitecustomize.py": "evil",
            "week90_other/ring.py": "other",
            "tests/test_x.py": "t",
            "Makefile": "x",
        },
    )
    package = arranged()
    extra = set(package.files) - {f"{PACKAGE}/{name}" for name in COURSE}
    assert extra == {
        *below(PACKAGE, dict.fromkeys(["helper.py", "tools/deep.py", "table.json", "given/more.py"])),
        "util.py",
        "mylib/__init__.py",
    }
    assert not any(b"evil" in data for data in package.files.values())
    (note,) = [note for note in package.notes if note.startswith("Not used")]
    assert "json.py, numpy/__init__.py, sitecustomize.py." in note and "week90" not in note


def test_extras_are_capped(folder, arranged, monkeypatch):
    import grading.intake.extras as extras

    monkeypatch.setattr(extras, "MAX_EXTRA", 5)
    put_all(folder / "anna", MINE | {f"m{n}.py": "x" for n in range(9)})
    package = arranged()
    assert len(package.files) == len(COURSE) + 5 and "m5.py" in package.notes[0]


@pytest.mark.parametrize(
    "renamed",
    [
        "ring (1).py",
        "Ring.py",
        "RING.PY",
        "ring_final.py",
        "ring - Kopie.py",
        "ring.py.txt",
        "ring2.py",
        "ring.ipynb",
        "my_ring.py",
    ],
)
def test_a_renamed_module_is_missing_and_the_sentence_names_it(folder, arranged, renamed):
    put_all(folder / "anna", {renamed: RING, "cost.py": COST, **LAB})
    package = arranged()
    assert package.missing["ring"] == (
        f"There is no ring.py in this hand-in. {renamed} looks like it: a file counts under its own name only."
    )
    assert "NotImplementedError" in at(package, "ring.py")  # so that what imports it still can
    assert at(package, "cost.py") == COST and "cost" not in package.missing


def test_nothing_alike_is_named(folder, arranged):
    put_all(folder / "anna", {"cost.py": COST, "notes.txt": "x", "given/string.py": ""})
    assert arranged().missing["ring"] == "There is no ring.py in this hand-in."


def test_a_file_of_the_course_is_not_named_as_alike(folder, arranged):
    put_all(folder / "anna", {"ring.py": RING, "given/cost.py": "given = 1\n"})
    assert arranged().missing["cost"] == "There is no cost.py in this hand-in."


def test_a_moved_module_is_named(folder, arranged):
    put_all(folder / "anna", {"ring.py": RING, "cost.py": COST, "more/my_tree.py": TREE})
    package = arranged()
    assert package.missing == {
        "stretch.tree": "There is no stretch/tree.py in this hand-in. more/my_tree.py looks like it: a "
        "file counts under its own name only."
    }


def test_a_file_that_lost_its_folder_counts(folder, arranged):
    """Canvas gives loose files back without their folders, and the stretch tasks were lost without a word."""
    put_all(folder / "anna", {"ring.py": RING, "cost.py": COST, "tree.py": TREE})
    package = arranged()
    assert (
        package.missing == {} and package.used["stretch.tree"] == "tree.py" and at(package, "stretch/tree.py") == TREE
    )
    put_all(folder / "anna", {"stretch/tree.py": TREE + "# whole\n", "tree.py": "x = 1\n"})
    assert at(arranged(), "stretch/tree.py") == TREE + "# whole\n", "the one in its place goes first"


@pytest.mark.parametrize(
    "content, sentence",
    [
        (RING.encode("utf-16"), "ring.py is UTF-16 text: save it as UTF-8."),
        (b"x = '\xe9'\n", "ring.py is not UTF-8 text: save it as UTF-8."),
        (b"\0\0", "ring.py holds zero bytes: it is no text."),
        (b"# coding: rot13\n", "ring.py is text in the encoding rot13: save it as UTF-8."),
        (b"# coding: utf-7\n", "ring.py is text in the encoding utf-7: save it as UTF-8."),
        (b"x" * 2_000_000, "ring.py has 2.0 MB, and a module may have 1.0."),
    ],
)
def test_what_cannot_be_a_module(folder, arranged, content, sentence):
    put_all(folder / "anna", {"ring.py": content, "cost.py": COST})
    package = arranged()
    assert package.missing["ring"] == sentence
    assert "NotImplementedError" in at(package, "ring.py") and at(package, "cost.py") == COST


@pytest.mark.parametrize(
    "content", [b"", b"def (", b"\xef\xbb\xbfx = 1\n", b"# coding: latin-1\nx = '\xe9'\n", b"x = 1\r\n"]
)
def test_what_python_may_judge_itself(folder, arranged, content):
    put_all(folder / "anna", {"ring.py": content})
    package = arranged()
    assert "ring" not in package.missing and package.files[f"{PACKAGE}/ring.py"] == content


def test_a_link_or_a_cap_is_the_reason(folder, arranged, tmp_path):
    put(tmp_path / "secret.py", "secret")
    put_all(folder / "anna" / PACKAGE, {"cost.py": COST})
    (folder / "anna" / PACKAGE / "ring.py").symlink_to(tmp_path / "secret.py")
    package = arranged()
    assert package.missing["ring"] == f"{PACKAGE}/ring.py is a link, and links are not followed."
    assert not any(b"secret" in data for data in package.files.values())


def test_several_copies_and_which_is_used(folder, arranged, week):
    handed_out = strip((week.folder / "ring.py").read_text())
    put_all(
        folder / "anna",
        below(PACKAGE, {"ring.py": RING, "cost.py": COST})
        | below("backup", {"ring.py": "old", "cost.py": COST})
        | below("zz", {"ring.py": handed_out}),
    )
    package = arranged()
    assert at(package, "ring.py") == RING and at(package, "cost.py") == COST
    assert [note for note in package.notes if "more than one" in note] == [
        f"There is more than one ring.py: {PACKAGE}/ring.py is used, and not backup/ring.py, zz/ring.py."
    ]


def test_the_untouched_copy_gives_way_to_the_worked_one(folder, arranged, week):
    """The student tree as it was handed out, and the work beside it."""
    handed_out = {
        name: strip((week.folder / name).read_text()).replace("\n", "\r\n") + "\n" for name in ("ring.py", "cost.py")
    }
    put_all(folder / "anna", below(PACKAGE, handed_out) | {"ring.py": RING})
    package = arranged()
    assert at(package, "ring.py") == RING and "ring" not in package.missing and "cost" not in package.missing
    assert any("ring.py is used, and not week91_rings/ring.py" in note for note in package.notes)


def test_the_copy_in_the_root_is_used_unless_it_is_untouched(folder, arranged, week):
    handed_out = strip((week.folder / "ring.py").read_text())
    put_all(
        folder / "anna",
        below("deep/work", {"cost.py": COST, "ring.py": handed_out, "stretch/tree.py": TREE})
        | {"ring.py": RING, "cost.py": "x = 1"},
    )
    package = arranged()
    assert at(package, "cost.py") == COST and at(package, "ring.py") == RING


def test_each_module_is_found_also_outside_the_root(folder, arranged):
    put_all(folder / "anna", below("work", {"cost.py": COST, "stretch/tree.py": TREE}) | {"late/ring.py": RING})
    package = arranged()
    assert not package.missing and at(package, "ring.py") == RING


def test_same_names_that_are_other_files(folder, arranged):
    """Of the library, of another week, of the week's given files, and the solutions that were handed out."""
    put_all(
        folder / "anna",
        {
            "labkit/comm/ring.py": "1",
            "week92_next/ring.py": "2",
            f"{PACKAGE}/given/cost.py": "3",
            f"solutions/{PACKAGE}/ring.py": "4",
            "capstone/ring.py": "5",
            "Week92-old/ring.py": "6",
            f"{PACKAGE}/stretch/tree.py": TREE,
        },
    )
    package = arranged()
    assert set(package.missing) == {"ring", "cost"} and at(package, "stretch/tree.py") == TREE


def test_a_notebook_alone(folder, arranged):
    put(folder / "anna.ipynb", LAB["lab.ipynb"])
    package = arranged()
    assert set(package.missing) == {"ring", "cost", "stretch.tree"}
    assert package.notebook.answers() == {"task-91-3": "my answer"}
    assert package.notes == [
        "There is a notebook, but none of the modules that are graded: ring.py, cost.py, stretch/tree.py.",
        "anna.ipynb is taken as the notebook.",
    ]


def test_a_module_that_two_weeks_have_makes_no_hand_in_the_others():
    """Weeks 14 and 15 both have an overlap.py: the larger share of a week's own tells."""
    (week,) = (week for week in find_weeks() if week.name == "week15")
    modules = {module.split(".")[-1] for task in week.tasks if task.kind == "auto" for module in task.modules}
    assert "overlap" in modules
    read = Submission.of("anna", {f"{module}.py": b"x = 1" for module in modules})
    assert another_week(read, week) == ("", True)


def test_another_weeks_files_are_told(folder, arranged):
    """One student's alone: of a whole source `grade collect` says so."""
    (other,) = (week for week in find_weeks() if week.name == "week14")
    modules = {module.split(".")[-1] for task in other.tasks if task.kind == "auto" for module in task.modules}
    put_all(folder / "anna", {**{f"{module}.py": "x = 1" for module in modules}, "lab.ipynb": LAB["lab.ipynb"]})
    assert "The files look like week14's: were they meant for week14?" in arranged().notes
    put_all(folder / "anna", {"ring.py": MINE["ring.py"]})
    assert not [note for note in arranged().notes if "look like" in note], "it holds one of this week's"


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"cells": 3}', b"\xff\xfe", b"[" * 200_000, b'{"cells": ' + b"9" * 10_000 + b"}", b"null"],
)
def test_a_broken_notebook_costs_nothing_else(folder, arranged, content):
    put_all(folder / "anna", MINE | {"lab.ipynb": content})
    package = arranged()
    assert package.notebook is None and not package.missing
    (note,) = package.notes
    assert note.startswith("lab.ipynb is no notebook that can be read") and "no other point depends on it" in note


def test_odd_cells_are_data(folder, arranged):
    cells = [
        3,
        {},
        {"cell_type": 1, "source": "x"},
        {"cell_type": "code", "source": ["a\n", 4, "b"], "outputs": [1, {"x": 2}]},
        {"cell_type": "markdown", "source": "first", "metadata": {"nbgrader": {"grade_id": "task-91-3"}}},
        {"cell_type": "markdown", "source": "second", "id": "task-91-3", "metadata": None},
        {"cell_type": "markdown", "source": "third", "metadata": {"labkit": {"grade_id": ["task-91-3"]}}},
    ]
    put_all(folder / "anna", MINE | {"lab.ipynb": "\ufeff" + json.dumps({"cells": cells})})
    book = arranged().notebook
    assert [cell.source for cell in book.cells] == ["a\nb", "first", "second", "third"]
    assert book.cells[0].outputs == ({"x": 2},)
    assert book.answers() == {"task-91-3": "first\n\nsecond"}


def test_the_notebook_with_the_grade_cells_is_taken(folder, arranged):
    put_all(folder / "anna", MINE | {"lab.ipynb": notebook(), "lab (1).ipynb": LAB["lab.ipynb"]})
    package = arranged()
    assert package.notebook.path == "lab (1).ipynb"
    assert package.notes == ["lab (1).ipynb is taken as the notebook."]
    assert not package.missing


def test_no_notebook_is_a_note_only(folder, arranged):
    put_all(folder / "anna", MINE)
    package = arranged()
    assert package.notes == [
        "There is no notebook lab.ipynb in this hand-in. The written tasks are in it; no other point depends on it."
    ]


def test_unicode_and_order_do_not_matter(folder, week):
    put_all(folder / "a", below("Übung/محمد", MINE))
    put(folder / "b.zip", zipped(list(reversed(below("Übung/محمد", MINE).items()))))
    first, second = (arrange(load(entry, week), week) for entry in find_submissions(folder, week))
    assert first == second and first.used["ring"] == "Übung/محمد/ring.py"


def test_a_change_of_the_course_is_seen(folder, read, week):
    (folder / "anna").mkdir()
    before = arrange(read(), week)
    put(week.folder / "given/clock.py", "ticks = 22\n")
    assert at(before, "given/clock.py") == "ticks = 1\n"
    assert at(arrange(read(), week), "given/clock.py") == "ticks = 22\n"


def test_only_what_git_tracks_is_laid_out(tmp_path):
    week = make_week(tmp_path)

    def run(*words):
        return os.spawnvp(os.P_WAIT, "git", ["git", "-C", str(tmp_path), *words])

    assert run("init", "-q") == 0 and run("add", ".") == 0
    put(week.folder / "my_notes.py", "the solution")
    nobody = Submission("x", 1, None)
    assert set(arrange(nobody, week).files) == {f"{PACKAGE}/{name}" for name in COURSE}
    assert run("rm", "-q", "--cached", f"{PACKAGE}/ring.py") == 0
    put(week.folder / "cost.py", "changed = 1\n")
    with pytest.raises(LabError, match="has no ring.py, which its tasks name, or git does not track it"):
        arrange(nobody, week)


def test_the_reference_of_this_course_is_laid_out_whole():
    for week in find_weeks(Path(__file__).resolve().parents[3]):
        released = released_week(week)
        mine = {f"{week.package}/{path}": (week.folder / path).read_bytes() for path in released.modules.values()}
        package = arrange(Submission.of("reference", mine), week)
        assert mine.items() <= package.files.items() and not package.missing
        assert not [note for note in package.notes if "notebook" not in note]
        turned = dict(reversed(mine.items()))
        assert Submission.of("again", turned).digest == Submission.of("reference", mine).digest != ""


def test_a_fault_of_the_course_is_the_instructors(folder, read, week, tmp_path):
    (folder / "anna").mkdir()
    submission = read()
    put(week.folder / "cost.py", "### BEGIN SOLUTION 91.2 it\n")
    with pytest.raises(LabError, match="never ends"):
        arrange(submission, week)
    put(week.folder / "cost.py", b"\xff")
    with pytest.raises(LabError, match="is not UTF-8 text"):
        arrange(submission, week)
    (week.folder / "cost.py").unlink()
    (week.folder / "cost.py").symlink_to(tmp_path)
    with pytest.raises(LabError, match="is a link"):
        arrange(submission, week)

"""A student's tree in mid-term: upgrades that overwrite nothing; solutions; the command."""

import json
import shutil
import subprocess
import sys

import pytest

import grading.tree
from grading import release as releasing
from grading.release import MANIFEST, release
from grading.run import class_seed
from labkit.checks.tasks import find_weeks
from labkit.errors import LabError
from tests.grading.aclassroom import grade
from tests.grading.minicourse import HELPER, HOLE, MINE, PARTS, PARTS_PY, ROOT, again, change, put, snapshot
from tests.grading.publish.aclass import a_class


def test_upgrade_in_mid_term(tree, course):
    (tree / PARTS_PY).write_text(MINE)
    put(tree / "week91_demo/my_notes.txt", "mine")
    put(tree / "week91_demo/lab.ipynb", "my notebook")
    change(course, PARTS_PY, "x + 1", "x + 10")
    change(course, HELPER, "helped = 1", "helped = 2")
    (course / "labkit/old.py").unlink()
    put(course / "labkit/new.py", "new = 1\n")
    report = again(tree, course, ["week91", "week92"])
    assert (tree / PARTS_PY).read_text() == MINE
    beside = (tree / f"{PARTS_PY}.new").read_text()
    assert "x + 10" in beside and "secret" not in beside and beside.endswith(HOLE)
    assert (tree / HELPER).read_text() == "helped = 2\n" and report.upgraded == [HELPER]
    assert (tree / "week91_demo/my_notes.txt").read_text() == "mine"
    assert (tree / "week91_demo/lab.ipynb").read_text() == "my notebook"
    assert not (tree / "week91_demo/lab.ipynb.new").exists(), "the course's notebook is not new"
    assert report.kept == ["week91_demo/lab.ipynb"] and report.beside == {PARTS_PY: f"{PARTS_PY}.new"}
    assert report.removed == ["labkit/old.py"] and not (tree / "labkit/old.py").exists()
    assert (tree / "labkit/new.py").exists() and (tree / "week92_next/parts.py").exists()
    # Reported once: the student has taken what was needed, and is left in peace until the course has something new.
    (tree / f"{PARTS_PY}.new").unlink()
    report = again(tree, course)
    assert not report.beside and not (tree / f"{PARTS_PY}.new").exists() and report.others == ["week92_next"]


def test_what_comes_with_a_week_stays_when_another_is_released_and_a_forged_record_brings_nothing_of_it(
    tree, course, monkeypatch
):
    """Week 92 brings a folder of labkit, and a paragraph of another week's helper."""
    monkeypatch.setattr(grading.tree, "LATER", {"labkit/plan": "week92"})
    put(course / "labkit/plan/model.py", "answer = 42\n")
    put(course / "week92_next/test_week.py", "def test_next(): pass\n")
    change(course, HELPER, "helped = 1\n", "# BEGIN WITH week92\nlater = 2\n# END WITH week92\nhelped = 1\n")
    record = json.loads((tree / MANIFEST).read_text())
    record["files"]["week92_next/test_week.py"] = record["files"][HELPER]
    (tree / MANIFEST).write_text(json.dumps(record))
    for text in ("", "def test_mine(): pass\n"):
        put(tree / "week92_next/test_week.py", text)
        again(tree, course, ["week91"])
        assert not (tree / "labkit/plan").exists() and "later = 2" not in (tree / HELPER).read_text()
    (tree / "week92_next/test_week.py").unlink()
    again(tree, course, ["week92"])
    report = again(tree, course, ["week91"])
    assert (tree / "labkit/plan/model.py").exists() and "later = 2" in (tree / HELPER).read_text()
    assert not report.removed and report.others == ["week92_next"]


def test_what_a_tree_no_longer_holds_goes_with_its_empty_folders(tree, course):
    for name in ("empty", "mine"):
        put(course / "labkit" / name / "old.py", "old = 1\n")
    assert len(again(tree, course).created) == 2
    put(tree / "labkit/mine/mine.txt", "mine")
    for name in ("empty", "mine"):
        shutil.rmtree(course / "labkit" / name)
    assert len(again(tree, course).removed) == 2
    assert {path.name for path in (tree / "labkit").iterdir()} == {"__init__.py", "old.py", "mine"}
    assert [path.name for path in (tree / "labkit/mine").iterdir()] == ["mine.txt"]


def test_a_text_beside_is_itself_never_overwritten(tree, course):
    (tree / PARTS_PY).write_text(MINE)
    for text in ("x + 10", "x + 11", "x + 12"):
        (course / PARTS_PY).write_text(PARTS.replace("x + 1", text))
        if text == "x + 12":
            (tree / f"{PARTS_PY}.new").write_text("my work on it")
        report = again(tree, course)
    assert report.beside == {PARTS_PY: f"{PARTS_PY}.new2"}
    assert (tree / f"{PARTS_PY}.new").read_text() == "my work on it" and (tree / PARTS_PY).read_text() == MINE
    assert "x + 12" in (tree / f"{PARTS_PY}.new2").read_text()
    assert not (tree / f"{PARTS_PY}.new3").exists()


def test_older_texts(tree, course):
    """A student's copy of any released text is upgraded; a course that goes back to an older text offers it."""
    first = (tree / HELPER).read_text()
    for number in (2, 3):
        (course / HELPER).write_text(f"helped = {number}\n")
        again(tree, course)
    (tree / HELPER).write_text(first)  # the student took an old copy back
    assert again(tree, course).upgraded == [HELPER] and (tree / HELPER).read_text() == "helped = 3\n"
    (tree / HELPER).write_text("mine\n")
    for number in (2, 1):
        (course / HELPER).write_text(f"helped = {number}\n")
        assert again(tree, course).beside == {HELPER: f"{HELPER}.new"}
        assert (tree / f"{HELPER}.new").read_text() == f"helped = {number}\n"


def test_a_deleted_file_comes_back_and_one_given_up_by_the_course_stays_if_it_was_changed(tree, course):
    (tree / HELPER).unlink()
    shutil.rmtree(tree / "results")
    (tree / "labkit/old.py").write_text("my experiment\n")
    (course / "labkit/old.py").unlink()
    report = again(tree, course)
    assert report.restored == ["results/README.md", HELPER] and (tree / HELPER).exists()
    assert report.left == ["labkit/old.py"] and (tree / "labkit/old.py").read_text() == "my experiment\n"
    assert not again(tree, course).left


def test_a_folder_may_take_a_files_place_and_permissions_of_an_upgraded_file_stay(tree, course):
    (course / "labkit/old.py").unlink()
    put(course / "labkit/old.py" / "inner.py", "inner = 1\n")
    (tree / HELPER).chmod(0o640)
    change(course, HELPER, "1", "2")
    again(tree, course)
    assert (tree / "labkit/old.py/inner.py").read_text() == "inner = 1\n"
    assert (tree / HELPER).stat().st_mode & 0o777 == 0o640 and (tree / HELPER).read_text() == "helped = 2\n"


def test_solutions_go_beside_and_only_where_they_are_named(tree, course):
    (tree / PARTS_PY).write_text(MINE)
    before = snapshot(tree)
    report = release(tree, solutions=["week91"], source=course)
    assert sorted(report.created) == ["solutions/week91_demo/lab.ipynb", f"solutions/{PARTS_PY}"]
    assert (tree / f"solutions/{PARTS_PY}").read_text() == PARTS
    handed = (tree / "solutions/week91_demo/lab.ipynb").read_text()
    assert "secret answer" in handed and "secret output" not in handed
    assert {k: v for k, v in snapshot(tree).items() if not k.startswith("solutions/")} == before
    # A solution that the student edited is the student's.
    (tree / f"solutions/{PARTS_PY}").write_text("mine")
    change(course, PARTS_PY, "secret_sum", "other_sum")
    release(tree, solutions=["week91"], source=course)
    assert (tree / f"solutions/{PARTS_PY}").read_text() == "mine"
    assert "other_sum" in (tree / f"solutions/{PARTS_PY}.new").read_text()
    # The next plain release neither takes them away nor hands out others.
    again(tree, course, ["week91", "week92"])
    assert (tree / f"solutions/{PARTS_PY}").read_text() == "mine" and not (tree / "solutions/week92_next").exists()


def test_a_forged_record_hands_nothing_out_and_removes_nothing_outside(tree, course, tmp_path):
    put(tmp_path / "outside.txt", "precious")
    record = json.loads((tree / MANIFEST).read_text())
    paths = ["../outside.txt", "labkit/../../outside.txt", str(tmp_path / "outside.txt"), "labkit//old.py"]
    paths += ["solutions/week91_demo/parts.py", "week92_next/parts.py"]
    record["files"] |= {path: [releasing._hash(b"precious")] for path in paths}
    (tree / MANIFEST).write_text(json.dumps(record))
    again(tree, course)
    assert (tmp_path / "outside.txt").read_text() == "precious"
    assert not (tree / "solutions").exists() and not (tree / "week92_next").exists()


def test_the_command(course, tmp_path, monkeypatch):
    monkeypatch.setattr(releasing, "COURSE", course)
    said = grade(tmp_path, "release", "all", "--to", "tree")
    assert f"tree: {len(snapshot(tmp_path / 'tree'))} files new" in said
    assert (tmp_path / "tree/week92_next/parts.py").exists()
    shutil.rmtree(tmp_path / "tree/labkit")
    (tmp_path / "tree/labkit").symlink_to(tmp_path)
    with a_class(tmp_path / "class", ["anna"], "", find_weeks(course)) as cls:
        seed = class_seed(cls, cls.week("week92"))
    said = grade(tmp_path, "release", "week92", "--solutions", "--to", "tree", "--class", "class", status=1)
    assert f"the seed of week92: {seed}" in said and (tmp_path / "tree/solutions/week92_next/parts.py").exists()


def test_solutions_wait_until_nobody_may_hand_in(course, tmp_path, monkeypatch):
    monkeypatch.setattr(releasing, "COURSE", course)
    rules = "[deadlines]\nweek92 = 2001-01-01T00:00:00Z\n[extensions.anna]\nweek92 = 2999-01-01T00:00:00Z\n"
    with a_class(tmp_path / "class", ["anna"], rules, find_weeks(course)):
        pass
    for more, status in (([], 2), (["--anyway"], 0)):
        grade(tmp_path, "release", "week92", "--solutions", "--to", "tree", "--class", "class", *more, status=status)
        assert (tmp_path / "tree" / "solutions").exists() == (not status)


def test_a_tree_inside_the_course_or_a_file_is_refused(course, tmp_path):
    put(tmp_path / "file", "")
    (tmp_path / "link").symlink_to(course)
    for target in (course, course / "out", tmp_path, tmp_path / "link" / "out"):
        with pytest.raises(LabError, match="lie in one another"):
            release(target, ["week91"], source=course)
    with pytest.raises(LabError, match="file is no folder"):
        release(tmp_path / "file", ["week91"], source=course)


def test_a_folder_of_other_things_is_refused_and_a_tree_without_its_record_is_not(course, tmp_path):
    """`--to ~` would put hundreds of files there."""
    home = tmp_path / "home"
    put(home / "thesis.tex", "mine")
    with pytest.raises(LabError, match="holds other things .'thesis.tex', say. and no release"):
        release(home, ["week91"], source=course)
    assert [path.name for path in home.iterdir()] == ["thesis.tex"]
    tree = tmp_path / "tree"
    put(tree / "README.md", "# My course\n")
    put(tree / ".git" / "HEAD", "")
    assert "README.md" in release(tree, ["week91"], source=course).beside
    assert (tree / "README.md").read_text() == "# My course\n", "a folder that was never released into keeps everything"
    put(tree / PARTS_PY, MINE)
    shutil.rmtree(tree / ".labs")  # somebody's zip left hidden folders out
    report = release(tree, ["week91"], source=course)
    assert (tree / PARTS_PY).read_text() == MINE and PARTS_PY in report.sentences()[-1]


def test_help_is_light():
    code = (
        "import sys, grading.cli\nheavy = {'torch', 'numpy', 'pytest', 'grading.release'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0

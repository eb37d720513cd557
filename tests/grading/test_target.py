"""Targets that are somebody else's: links, odd things, full, read-only, busy, and releases that were killed."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from grading.files import locked
from grading.release import MANIFEST
from labkit.errors import LabError
from tests.grading.minicourse import HELPER, MINE, PARTS_PY, ROOT, again, change, put, snapshot


def test_links_are_never_followed(tree, course, tmp_path):
    outside = tmp_path / "outside"
    put(outside / "helper.py", (tree / HELPER).read_text())  # unchanged, so that following would upgrade it
    put(outside / "results/record.json", (tree / "week91_demo/results/record.json").read_text())
    (tree / HELPER).unlink()
    (tree / HELPER).symlink_to(outside / "helper.py")
    (tree / PARTS_PY).unlink()
    (tree / PARTS_PY).symlink_to(outside / "nowhere.py")
    shutil.rmtree(tree / "week91_demo/results")
    (tree / "week91_demo/results").symlink_to(outside / "results")
    shutil.rmtree(tree / "labkit")
    (tree / "labkit").symlink_to(outside)
    before = snapshot(outside)
    for path in (HELPER, PARTS_PY):
        (course / path).write_text((course / path).read_text() + "more = 1\n")
    (course / "week91_demo/results/record.json").write_text("[]\n")
    (course / "labkit/old.py").unlink()  # given up, and behind a link
    report = again(tree, course)
    assert snapshot(outside) == before
    assert report.blocked == ["labkit", "week91_demo/results"]
    assert set(report.beside) == {HELPER, PARTS_PY} and (tree / HELPER).is_symlink()
    assert any(s.startswith("labkit is a link or no folder: nothing was put into it") for s in report.sentences())
    # The link gone, the next release completes the tree.
    (tree / "labkit").unlink()
    (tree / "week91_demo/results").unlink()
    put(tree / "week91_demo/results/record.json", "mine")  # and what could not be reported then is reported now
    report = again(tree, course)
    assert not report.blocked and (tree / "labkit/__init__.py").exists()
    assert "week91_demo/results/record.json" in report.beside


def test_a_link_left_over_for_the_record_or_its_folder_is_not_followed(tree, course, tmp_path):
    put(tmp_path / "outside.txt", "precious")
    (tree / ".labs/incoming").symlink_to(tmp_path / "outside.txt")
    change(course, HELPER, "1", "2")
    again(tree, course)
    assert (tmp_path / "outside.txt").read_text() == "precious" and (tree / HELPER).read_text() == "helped = 2\n"
    assert not (tree / HELPER).is_symlink()
    put(tmp_path / "outside/release.json", "mine")
    (tree / MANIFEST).unlink()
    (tree / MANIFEST).symlink_to(tmp_path / "outside/release.json")
    with pytest.raises(LabError, match="release.json is damaged: delete it"):
        again(tree, course)
    shutil.rmtree(tree / ".labs")
    (tree / ".labs").symlink_to(tmp_path / "outside")
    with pytest.raises(LabError, match=".labs is a link or no folder"):
        again(tree, course)
    assert (tmp_path / "outside/release.json").read_text() == "mine" and len(snapshot(tmp_path / "outside")) == 1


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_folder_or_pipe_in_a_files_place_is_left_alone(kind, tree, course):
    (tree / HELPER).unlink()
    (tree / HELPER).mkdir() if kind == "folder" else os.mkfifo(tree / HELPER)
    change(course, HELPER, "1", "2")
    assert again(tree, course).beside == {HELPER: f"{HELPER}.new"}
    assert (tree / f"{HELPER}.new").read_text() == "helped = 2\n"


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"format": 2, "complete": true, "files": {}}', '{"format": 1, "complete": true, "files": {"a": [1]}}',
    ],
)  # fmt: skip
def test_a_damaged_record_is_one_sentence(text, tree, course):
    (tree / MANIFEST).write_text(text)
    before = snapshot(tree)
    with pytest.raises(LabError, match="release.json is damaged: delete it and release again"):
        again(tree, course)
    assert snapshot(tree) == before


KILLED = """
import os, sys
from grading.release import release
left, real = int(sys.argv[3]), os.replace
def replace(*args, **kwargs):
    global left
    left -= 1
    if left == 0 and sys.argv[4] == "before": os.kill(os.getpid(), 9)
    real(*args, **kwargs)
    if left == 0: os.kill(os.getpid(), 9)
os.replace = replace
release(sys.argv[2], ["week91"], source=sys.argv[1])
"""


def python(code, *words):
    """A program beside this one; how it ended."""
    words = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("at, when", [(1, "before"), (1, "after"), (4, "after"), (6, "before"), (7, "after")])
def test_a_release_killed_in_the_middle_is_completed_by_the_next(at, when, tree, course):
    """Also if the course went on in between: what the killed release wrote is known as the course's."""
    (tree / PARTS_PY).write_text(MINE)
    (tree / "results/README.md").unlink()
    for path in (HELPER, PARTS_PY, "labkit/__init__.py", "labkit/old.py"):
        (course / path).write_text((course / path).read_text() + "second = 2\n")
    killed = python(KILLED, course, tree, at, when)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for path in (HELPER, PARTS_PY):
        change(course, path, "second = 2", "third = 3")
    report = again(tree, course)
    assert (tree / PARTS_PY).read_text() == MINE and set(report.beside) == {PARTS_PY}
    assert (tree / f"{PARTS_PY}.new").read_text().endswith("third = 3\n")
    files = snapshot(tree)
    fresh = tree.parent / "fresh"
    again(fresh, course)
    wanted = snapshot(fresh) | {PARTS_PY: MINE.encode(), f"{PARTS_PY}.new": (fresh / PARTS_PY).read_bytes()}
    assert files == wanted
    assert os.listdir(tree / ".labs") == ["release.json"]
    assert not again(tree, course).beside, "reported once"


def test_a_full_disk_is_one_sentence_and_the_next_release_goes_on(tree, course):
    """A limit on file size makes a write fail as a full disk does, half-way through a file."""
    put(course / "week91_demo/results/big.json", "x" * 200_000)
    change(course, HELPER, "1", "2")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "from grading import release, cli; release.COURSE = release.Path(sys.argv[1]);"
        "cli.main(['release', 'week91', '--to', sys.argv[2]])"
    )
    done = python(code, course, tree)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        f"grade: {tree} cannot be written (File too large): fix that and release again, "
        "which goes on from here and loses nothing\n"
    )
    assert not (tree / "week91_demo/results/big.json").exists() and os.listdir(tree / ".labs") == ["release.json"]
    again(tree, course)
    assert (tree / HELPER).read_text() == "helped = 2\n" and (tree / "week91_demo/results/big.json").exists()


def test_two_releases_at_once_do_not_mix(tree, course):
    with locked(tree / ".labs", "busy"), pytest.raises(LabError, match="another release into .* is running"):
        again(tree, course)
    assert again(tree, course).same

"""`grade release --git`: a repository that students pull; their edits survive, and nothing of the instructors' is ever in it."""

import subprocess

import pytest

from grading.repository import release_to_git
from labkit.errors import LabError
from tests.grading.minicourse import HELPER, HOLE, MINE, PARTS_PY, change


def git(folder, *words):
    who = ("-c", "user.name=s", "-c", "user.email=s@example.org", "-c", "pull.rebase=false")
    done = subprocess.run(["git", "-C", folder, *who, *words], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, course):
    release_to_git(tmp_path / "students", ["week91"], source=course)
    return tmp_path / "students"


def history(repository):
    """Every text and path that any commit of any branch holds."""
    names = git(repository, "log", "--all", "--name-only", "--format=").split()
    return set(names), git(repository, "log", "--all", "-p", "--format=%an %ae %s%n")


def test_a_students_edits_survive_an_upgrade_by_merge(repository, course, tmp_path):
    git(tmp_path, "clone", "-q", repository, "clone")
    clone = tmp_path / "clone"
    assert (clone / PARTS_PY).read_text().endswith(HOLE)
    (clone / PARTS_PY).write_text(MINE)
    git(clone, "commit", "-qam", "my ring")
    change(course, HELPER, "helped = 1", "helped = 2")
    (course / "labkit/old.py").unlink()
    release_to_git(repository, ["week92"], source=course)
    git(clone, "pull", "-q")
    assert (clone / PARTS_PY).read_text() == MINE and (clone / HELPER).read_text() == "helped = 2\n"
    assert (clone / "week92_next/parts.py").exists() and not (clone / "labkit/old.py").exists()


def test_no_instructors_file_is_ever_in_its_history(repository, course):
    (repository / "note.txt").write_text("an instructor's, lying about")
    change(course, HELPER, "helped = 1", "helped = 2")
    release_to_git(repository, source=course)
    names, texts = history(repository)
    assert PARTS_PY in names and "AGENTS.md" in names
    assert not [one for one in names if one.startswith(("grading/", "tests/", "solutions/")) or "secret" in one]
    assert "secret" not in texts and "note.txt" not in names
    assert git(repository, "log", "-1", "--format=%an %ae") == "the course course@localhost"


def test_a_release_is_one_commit_and_none_where_nothing_is_new(repository, course):
    change(course, HELPER, "helped = 1", "helped = 2")
    release_to_git(repository, source=course)
    assert git(repository, "rev-list", "--count", "course") == "2" == git(repository, "rev-list", "--count", "main")
    release_to_git(repository, solutions=["week91"], source=course)
    change(course, HELPER, "helped = 2", "helped = 3")
    release_to_git(repository, source=course)
    assert (repository / f"solutions/{PARTS_PY}").exists(), "handed out once, they stay"


def test_what_an_instructor_adds_stays_and_a_conflict_is_named(repository, course):
    (repository / "SYLLABUS.md").write_text("ours\n")
    (repository / HELPER).write_text("helped = 'ours'\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "ours")
    change(course, "labkit/__init__.py", "labkit", "labkit 2")
    release_to_git(repository, source=course)
    assert (repository / "SYLLABUS.md").exists() and "labkit 2" in (repository / "labkit/__init__.py").read_text()
    change(course, HELPER, "helped = 1", "helped = 2")
    with pytest.raises(LabError, match="the branch course"):
        release_to_git(repository, source=course)


def test_a_folder_or_a_repository_of_something_else_is_refused(tmp_path, course):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("")
    with pytest.raises(LabError, match="no git repository"):
        release_to_git(tmp_path / "other", ["week91"], source=course)
    git(tmp_path / "other", "init", "-q")
    git(tmp_path / "other", "add", "-A")
    git(tmp_path / "other", "commit", "-qm", "other")
    with pytest.raises(LabError, match="nothing was released there"):
        release_to_git(tmp_path / "other", ["week91"], source=course)
    with pytest.raises(LabError, match="lie in one another"):
        release_to_git(course / "students", ["week91"], source=course)
    with pytest.raises(LabError, match="name the weeks"):
        release_to_git(tmp_path / "new", source=course)
    assert not (tmp_path / "new").exists()

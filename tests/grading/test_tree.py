"""What a released tree holds, and what no source may slip into it."""

import json
import os
import shutil
import subprocess

import pytest

from grading import tree as releasing
from grading.release import MANIFEST, release
from labkit.errors import LabError
from tests.grading.minicourse import HELPER, HOLE, PARTS_PY, again, change, put, snapshot


def test_a_new_tree_holds_what_is_listed_and_nothing_else(tree, course):
    files = snapshot(tree)
    week = {
        f"week91_demo/{name}"
        for name in (
            "tasks.toml", "parts.py", "helper.py", "test_week.py", "lab.ipynb", "results/record.json",
            "results/README.md", "results/figures/shown.png", "bench.sh",
        )
    }  # fmt: skip
    assert set(files) == week | {
        "LICENSE", "LICENSE-text", "CITATION.cff", "Dockerfile", ".dockerignore", ".devcontainer/devcontainer.json",
        "Makefile", "README.md", "docs/students.md", "docs/watching.md", "docs/images/chunk-grid.png",
        "docs/how-labs-work.md", "docs/glossary.md", "docs/images/autopsy.svg",
        "environment.yml", "pyproject.toml", "AGENTS.md", "requirements.lock", "requirements-container.txt",
        "requirements-watch.lock", "setup.sh", ".gitignore", "labkit/__init__.py", "labkit/old.py",
        "results/README.md",
    }  # fmt: skip
    assert (tree / PARTS_PY).read_text().endswith(HOLE)
    everything = b"".join(files.values())
    assert b"secret" not in everything and b"Write your answer here" in files["week91_demo/lab.ipynb"]
    assert os.access(tree / "week91_demo/bench.sh", os.X_OK) and not os.access(tree / PARTS_PY, os.X_OK)
    assert json.loads((tree / MANIFEST).read_text())["complete"] is True


def test_a_second_release_of_the_same_changes_nothing(tree, course):
    before = snapshot(tree)
    report = again(tree, course)
    assert snapshot(tree) == before and len(report.same) == len(before)
    assert len(report.sentences()) == 1 and "0 files new, 0 upgraded" in report.sentences()[0]


def test_only_what_git_tracks_is_released(course, tmp_path):
    git = ["git", "-C", str(course), "-c", "user.name=x", "-c", "user.email=x@y"]
    if shutil.which("git") is None:
        pytest.skip("git is not here")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    put(course / "week91_demo" / "answers.md", "secret\n")
    if os.geteuid() == 0:  # git asks whose it is: a course that another account installed
        for path in (course, course / ".git"):
            os.chown(path, 65534, 65534)
    report = release(tmp_path / "tree", ["week91"], source=course)
    assert not (tmp_path / "tree/week91_demo/answers.md").exists() and (tmp_path / "tree" / PARTS_PY).exists()
    assert report.untracked == ["week91_demo/answers.md"]
    assert any("answers.md is not in git" in sentence for sentence in report.sentences())


def test_instructors_text_is_cut_out(course, tmp_path):
    with open(course / "README.md", "a") as readme:
        readme.write("\n<!-- BEGIN INSTRUCTOR -->\n## How we grade\n<!-- END INSTRUCTOR -->\nlast line\n")
    change(course, HELPER, "helped = 1\n", "helped = 1\n    # BEGIN INSTRUCTOR\nours = 2\n    # END INSTRUCTOR\n")
    release(tmp_path / "tree", ["week91"], source=course)
    text = (tmp_path / "tree/README.md").read_text()
    assert text.endswith("\n\nlast line\n") and "How we grade" not in text and "INSTRUCTOR" not in text
    assert (tmp_path / "tree" / HELPER).read_text() == "helped = 1\n"


def test_text_a_page_and_a_room_of_a_later_week_come_with_that_week(course, tmp_path, monkeypatch):
    monkeypatch.setattr(releasing, "PAGES", {"week92": ("docs/later.md",)})
    monkeypatch.setattr(releasing, "LATER", {"labkit/later": "week92"})
    change(course, HELPER, "helped = 1\n", "# BEGIN WITH week92\nlater = 2\n# END WITH week92\nhelped = 1\n")
    for path in ("docs/later.md", "docs/instructors.md", "labkit/later/room.py"):
        put(course / path, "secret\n")
    tree = tmp_path / "tree"
    for weeks, text, more in (
        (["week91"], "", set()),
        (["week91", "week92"], "later = 2\n", {"docs/later.md", "labkit/later/room.py"}),
    ):
        release(tree, weeks, source=course)
        assert (tree / HELPER).read_text() == f"{text}helped = 1\n"
        assert {name for name, content in snapshot(tree).items() if content == b"secret\n"} == more


@pytest.mark.parametrize(
    "bad, where",
    [
        ("# BEGIN INSTRUCTOR\n", ":2: BEGIN INSTRUCTOR without END"),
        ("# END INSTRUCTOR\n", ":2: .* in pairs"),
        ("# BEGIN INSTRUCTOR\n# BEGIN INSTRUCTOR\n# END INSTRUCTOR\n", ":3: .* in pairs"),
        ("#BEGIN INSTRUCTOR\n", ":2: this is almost"),
        ("# BEGIN WITH week92\n# END INSTRUCTOR\n", ":3: END INSTRUCTOR after BEGIN WITH week92"),
        ("# BEGIN WITH week92\n# END WITH week93\n", ":3: END WITH week93 after BEGIN WITH week92"),
        ("# BEGIN WITH 92\n", ":2: this is almost"),
        ("<!-- BEGIN INSTRUCTOR\n", ":2: this is almost"),
        ("x = 1  # begin instructor\n", ":2: this is almost"),
        ("### BEGIN SOLUTION 91.1\n", "never ends"),
        ("x = '''\n  BEGIN SOLUTION'''\n", "with a solution in it"),
        ("from week92_next import parts\n", "imports week92_next: release that week as well"),
    ],
)
def test_a_source_that_would_leak_or_break_is_refused_before_the_target_is_touched(bad, where, course, tmp_path):
    (course / HELPER).write_text("helped = 1\n" + bad)
    with pytest.raises(LabError, match=f"week91_demo/helper.py.*{where}"):
        release(tmp_path / "tree", ["week91"], source=course)
    assert not (tmp_path / "tree").exists()


def test_a_week_comes_with_the_week_that_it_imports(course, tmp_path):
    (course / HELPER).write_text("from week92_next import helper\n")
    assert release(tmp_path / "tree", ["week91", "week92"], source=course).created


def test_a_solution_in_a_text_file_or_a_link_in_the_source_is_refused(course, tmp_path):
    put(course / "week91_demo" / "notes.md", "### BEGIN SOLUTION 91.1\nsecret\n### END SOLUTION\n")
    with pytest.raises(LabError, match="notes.md would be released with a solution in it"):
        release(tmp_path / "tree", ["week91"], source=course)
    (course / "week91_demo" / "notes.md").unlink()
    (course / "week91_demo" / "link.py").symlink_to("/etc/passwd")
    with pytest.raises(LabError, match="link.py is a link"):
        release(tmp_path / "tree", ["week91"], source=course)


def test_the_students_makefile_and_packaging_name_no_grading(course, tmp_path):
    assert 'grade = "grading.cli:main"' in (course / "pyproject.toml").read_text()
    release(tmp_path / "tree", ["week91"], source=course)
    for name in ("pyproject.toml", "Makefile"):
        assert "grading" not in (tmp_path / "tree" / name).read_text()
    put(course / "Makefile", (course / "Makefile").read_text() + "\nmarks:\n\t@$(VENV)/bin/grade release\n")
    with pytest.raises(LabError, match="Makefile still names grading"):
        release(tmp_path / "tree", ["week91"], source=course)
    change(course, "Makefile", "-m pytest", "-m unittest")
    with pytest.raises(LabError, match="bring REWRITES in grading/tree.py up to date"):
        release(tmp_path / "tree", ["week91"], source=course)

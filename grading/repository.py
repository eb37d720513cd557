"""`grade release --git DIR`: the student tree as a git repository of its own, which students fork, clone and pull.

    course     a branch with one commit for each release: exactly the student tree, never a file that lay about
    main       what students get: `course` is merged into it, so what an instructor added there stays

Weeks and solutions that were released before are released again with those that are named. Commits hold no person's
name. Nothing is pushed.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grading.here import COURSE
from grading.intake.names import count
from grading.release import named, refuse_inside, whole_tree
from grading.tree import SOLUTIONS, Tree
from labkit.checks.tasks import find_weeks
from labkit.errors import LabError

BRANCH, MAIN = "course", "main"
WHO = {f"GIT_{role}_NAME": "the course" for role in ("AUTHOR", "COMMITTER")}
WHO |= {f"GIT_{role}_EMAIL": "course@localhost" for role in ("AUTHOR", "COMMITTER")}
PLAIN = ("commit.gpgSign=false", "core.hooksPath=/dev/null", "core.autocrlf=false", "core.fileMode=true")


def release_to_git(
    target: str | Path, names: Sequence[str] = (), *, solutions: Sequence[str] = (), source: str | Path | None = None
) -> list[str]:
    """Commit the student tree with these weeks, and those that are there; sentences for a person. LabError as `release`,
    for a repository of something else, and for a merge that git refuses."""
    source, target = Path(source or COURSE).resolve(), Path(target).absolute()
    weeks = find_weeks(source)
    refuse_inside(target, source)
    if not (target / ".git").exists():
        if target.exists() and any(target.iterdir()):
            raise LabError(f"{target} holds other things and is no git repository: name a new folder")
        whole_tree(source, named(names, weeks), named(solutions, weeks))  # says what is wrong before anything is made
        target.mkdir(parents=True, exist_ok=True)
        _git(target, "init", "-q", "-b", MAIN)
    before = next((ref for ref in (f"refs/heads/{BRANCH}", f"refs/remotes/origin/{BRANCH}") if _has(target, ref)), None)
    if before is None and _has(target, "HEAD"):
        raise LabError(
            f"{target} is a git repository without the branch {BRANCH}, so nothing was released there: name a new folder"
        )
    there = set(_git(target, "ls-tree", "--name-only", before, ".", f"{SOLUTIONS}/").split("\n")) if before else set()
    chosen = [week for week in weeks if week.package in there or week in named(names, weeks)]
    solved = [week for week in weeks if f"{SOLUTIONS}/{week.package}" in there or week in named(solutions, weeks)]
    tree = whole_tree(source, chosen, solved)
    made = _tree_object(target, tree)
    said = [f"{path} is not in git and was not released" for path in tree.untracked]
    if before and _git(target, "rev-parse", f"{before}^{{tree}}") == made:
        return [*said, f"{target}: nothing is new"]
    what = ", ".join(week.title for week in chosen) + (
        f"; solutions of {', '.join(week.title for week in solved)}" if solved else ""
    )
    parent = ["-p", before] if before else []
    commit = _git(target, "commit-tree", made, *parent, "-m", f"Release: {what}")
    begun = _has(target, "HEAD")
    _git(target, "update-ref", f"refs/heads/{BRANCH}", commit)
    if begun:
        try:
            _git(target, "merge", "-q", "--no-edit", BRANCH)
        except LabError as error:
            raise LabError(
                f"{error}\nThe release is on the branch {BRANCH}: end the merge by hand in {target}, or `git merge --abort`"
            ) from None
    else:
        _git(target, "reset", "-q", "--hard", commit)
    return [
        *said,
        f"{target}: {count(len(tree.files), 'file')} released as one commit, {what}; publish it with `git push origin {MAIN} {BRANCH}`",
    ]


def _tree_object(target: Path, tree: Tree) -> str:
    """Git's name of exactly these files."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "files")
        for name, file in tree.files.items():
            path = files / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
            path.chmod(0o755 if file.executable else 0o644)
        index = str(Path(folder, "index"))
        _git(target, f"--work-tree={files}", "add", "--all", "--force", ".", cwd=files, GIT_INDEX_FILE=index)
        return _git(target, "write-tree", GIT_INDEX_FILE=index)


def _has(target: Path, ref: str) -> bool:
    try:
        return bool(_git(target, "rev-parse", "-q", "--verify", ref))
    except LabError:
        return False


def _git(target: Path, *words: str, cwd: Path | None = None, **env: str) -> str:
    """What git prints. LabError with what it says."""
    command = ["git", f"--git-dir={target / '.git'}", *(word for one in PLAIN for word in ("-c", one))]
    command += [] if words[0].startswith("--work-tree") else [f"--work-tree={target}"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        [*command, *words], cwd=cwd or target, env={**clean, **WHO, **env}, capture_output=True, text=True
    )
    if done.returncode:
        raise LabError(f"git {words[0]} in {target}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()

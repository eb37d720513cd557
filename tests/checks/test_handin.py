"""`lab handin`: one zip that says what is in it, and that grading reads without guessing."""

import contextlib
import hashlib
import zipfile

import pytest

from grading.intake.arrange import arrange
from grading.intake.submission import read_submission
from labkit.checks import handin
from labkit.cli import main
from labkit.errors import LabError
from tests.grading.intake.handed_in import MINE, PACKAGE, make_week, put, put_all


@pytest.fixture
def week(tmp_path):
    """A student tree with one week, in which work was done."""
    week = make_week(tmp_path / "tree")
    put_all(week.folder, MINE | {"predictions.jsonl": "{}\n", "helper.py": "x = 1\n", "answer.pdf": "x"})
    put(tmp_path / "tree/hello.py", "print(1)\n")
    return week


def test_the_zip_holds_the_work_and_a_manifest_that_fits(week, tmp_path):
    sizes = handin.hand_in(week, tmp_path / "week91.zip")
    own = {*MINE, "lab.ipynb", "predictions.jsonl", "helper.py", "answer.pdf"}
    assert {"hello.py", *(f"{PACKAGE}/{name}" for name in own)} <= set(sizes)
    names = {name.removeprefix(f"{PACKAGE}/") for name in sizes}
    assert not names & {"tasks.toml", "test_week91.py", "README.md", "given/clock.py", "data/wires.txt"}
    assert not any(part.startswith(".") or part == "__pycache__" for name in sizes for part in name.split("/"))
    with zipfile.ZipFile(tmp_path / "week91.zip") as archive:
        manifest = handin.read_manifest(archive.read(handin.MANIFEST))
        assert manifest.files == {name: hashlib.sha256(archive.read(name)).hexdigest() for name in sizes}
    assert manifest.week == "week91" and manifest.versions["labkit"]


def test_grading_takes_each_file_for_what_the_manifest_says(week, tmp_path):
    handin.hand_in(week, tmp_path / "week91.zip")
    read = read_submission(tmp_path / "week91.zip")
    assert read.manifest and not read.notes
    package = arrange(read, week)
    assert package.used == {"ring": f"{PACKAGE}/ring.py", "cost": f"{PACKAGE}/cost.py",
                            "stretch.tree": f"{PACKAGE}/stretch/tree.py"}  # fmt: skip
    assert not package.missing and package.files[f"{PACKAGE}/helper.py"] == b"x = 1\n"


def test_a_runs_folder_comes_along_without_its_checkpoints(week, tmp_path):
    put_all(tmp_path / "runs/mine", {"run.json": "{}", "checkpoints/1/x.pt": "big"})
    sizes = handin.hand_in(week, tmp_path / "w.zip", [tmp_path / "runs/mine", put(tmp_path / "notes.md", "x")])
    assert {name for name in sizes if name.startswith(("mine/", "notes"))} == {"mine/run.json", "notes.md"}


def test_what_cannot_be_handed_in_is_one_sentence(week, tmp_path, monkeypatch):
    with pytest.raises(LabError, match="there is no"):
        handin.hand_in(week, tmp_path / "w.zip", [tmp_path / "nothing"])
    (week.folder / "linked.py").symlink_to(week.folder / "ring.py")
    with pytest.raises(LabError, match="is a link"):
        handin.hand_in(week, tmp_path / "w.zip")
    (week.folder / "linked.py").unlink()
    monkeypatch.setattr(handin, "MOST_BYTES", 3)
    with pytest.raises(LabError, match="move it away"):
        handin.hand_in(week, tmp_path / "w.zip")
    monkeypatch.undo()
    monkeypatch.setattr(handin, "MOST_FILES", 3)
    with pytest.raises(LabError, match="too much"):
        handin.hand_in(week, tmp_path / "w.zip")
    assert not (tmp_path / "w.zip").exists()


def test_the_command_says_what_is_in_it_and_what_is_missing(week, tmp_path, capsys):
    (week.folder / "cost.py").unlink()
    with contextlib.chdir(tmp_path / "tree"), pytest.raises(SystemExit) as left:
        main(["handin", "week91"])
    said = capsys.readouterr().out
    assert not left.value.code and (tmp_path / "tree/week91.zip").is_file()
    assert f"{PACKAGE}/ring.py  (" in said and f"{PACKAGE}/cost.py is not there" in said

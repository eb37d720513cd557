"""What an instructor types, and what `grade` says to a slip: one sentence, in the words that it takes."""

import importlib.util
import io
import subprocess

import pytest

from grading import cli
from grading.corrections import correct
from grading.marking import jupyter
from grading.options import FORMER
from grading.register.classes import open_class
from grading.register.standing import standings
from grading.register.submissions import attempt
from labkit.errors import LabError
from tests.grading.aclassroom import grade
from tests.grading.publish.aclass import LATE, NOON, ROOT, WEEK, a_class, hand_in, hand_points, mark

COPYDETECT = pytest.mark.skipif(not importlib.util.find_spec("copydetect"), reason="copydetect is not installed")


@pytest.fixture
def folder(tmp_path):
    """A class's folder: anna has all points, ben is to be marked, cleo handed in nothing."""
    with a_class(tmp_path / "autumn", ["anna", "ben", "cleo"], 'zone = "Europe/Berlin"\n' + LATE) as cls:
        hand_points(cls, hand_in(cls, "anna", mark()), "13.7", 20)
        hand_in(cls, "ben", mark("13.5 GB/s"))
    return tmp_path / "autumn"


@pytest.mark.parametrize("word", FORMER)
def test_a_former_command_says_what_to_type_now(word, folder):
    said = grade(folder, word, "week13", "--whatever", status=2)
    assert said.startswith(f"grade: `grade {word}` is no command any more: ") and said.count("grade:") == 1


@pytest.mark.parametrize(
    "words, hint",
    [
        (("release", "week99", "--to", "tree"), "did you mean 'week"),
        (("release", "--to", "tree"), "name the weeks to release"),
        (("status", "week", "13"), "week13"),
        (("status", "week31"), "did you mean 'week1"),
        (("collect", "week13", "sheet.csv"), "DOWNLOAD.zip"),
        (("run", "week13", "--seed", "3"), "--student"),
        (("run", "week13", "--task", "13.7"), "by a person"),
        (("run", "week13", "--task", "14.1"), "no task of week13"),
        (("run", "week13", "--task", "13.2", "--dask", "local"), "--dask"),
        (("who", "Anna", "anna"), 'grade who "Sean OBrien" = '),
        (("submission", "1", "retime"), "grade submission 17 time"),
        (("submission", "99"), "no submission 99"),
        (("submission", "d.zip", "withdraw"), "no submission came from"),
        (("submission", "1", "time", "yesterday"), "no time"),
        (("why", "week13", "ann"), "anna"),
        (("why", "week13", "anna", "14.1"), "week14"),
        (("forget", "zoe"), "nobody"),
        pytest.param(("similar", "week13", "--earlier", "nowhere"), "no class's folder", marks=COPYDETECT),
        (("publish", "week13", "nowhere.csv"), "there is no nowhere.csv"),
    ],
)
def test_a_slip_is_one_sentence(words, hint, folder):
    said = grade(folder, *words, status=2)
    assert said.startswith("grade: ") and hint in said and "Traceback" not in said


@pytest.mark.parametrize("words", [("status",), ("publish", "week13"), ("who",), ("run", "week13"), ("forget", "anna")])
def test_another_folder_is_no_class(words, tmp_path):
    assert "grade init" in grade(tmp_path, *words, status=2)
    assert list(tmp_path.iterdir()) == [], "and nothing was made there"


def test_the_courses_own_repository_and_nbgraders_folder_are_no_class(folder):
    assert "folder of its own" in grade(ROOT, "init", "autumn", "--roster", "a.csv", "--zone", "UTC", status=2)
    (folder / "gradebook").mkdir()
    assert f"--class {folder}" in grade(folder / "gradebook", "status", status=2)


def test_init_again_takes_a_newer_roster(tmp_path):
    (tmp_path / "a.csv").write_text("anna\nben\n")
    (tmp_path / "b.csv").write_text("anna\ncleo\n")
    assert "who is in the class?" in grade(tmp_path, "init", "autumn", status=2)
    grade(tmp_path, "init", "autumn", "--roster", "a.csv", "--zone", "UTC")
    grade(tmp_path, "status", "--class", "autumn")
    said = grade(tmp_path, "init", "autumn", "--roster", "b.csv")
    assert "2 students, 1 of them new" in said and "left since" in said and "ben" in said
    assert "Berlin" in grade(tmp_path, "init", "other", "--roster", "a.csv", "--zone", "Berlin", status=2)
    grade(tmp_path, "init", "other", "--roster", "a.csv", status=2)


def test_publish_is_refused_as_a_whole_and_in_the_words_of_status(folder):
    from grading.intake.arrival import Arrival, Key
    from grading.register.submissions import add_submission
    from tests.grading.publish.aclass import zipped

    with open_class(folder, [WEEK]) as cls:
        add_submission(cls, WEEK, Arrival("Ana", [Key("name", "Ana")], zipped({"a.py": b""}), NOON, "moodle", "d.zip"))
    assert "grade who Ana = anna" in grade(folder, "status", "week13")
    grade(folder, "status")
    said = grade(folder, "publish", "week13", status=2)
    assert "grade who Ana = anna" in said and not (folder / "published").exists()
    grade(folder, "who", "Ana", "=", "anna")


def test_a_name_cannot_write_on_the_terminal(tmp_path):
    with a_class(tmp_path / "autumn", "student,name\nu1,\x1b[2Jevil [bold]\n", LATE) as cls:
        hand_in(cls, "u1", mark())
    for words in (("status", "week13"), ("who",), ("why", "week13", "u1"), ("publish", "week13"), ("submission", "1")):
        assert "\x1b[2J" not in grade(tmp_path / "autumn", *words, status=None)


def test_forget_shows_asks_and_says_what_is_left(folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    grade(folder, "forget", "anna", status=1)
    with open_class(folder, [WEEK]) as cls:
        assert len(standings(cls, WEEK)) == 3, "nothing was removed"
    grade(folder, "forget", "anna", "--yes", status=1)
    with open_class(folder, [WEEK]) as cls:
        assert [one.person.name for one in standings(cls, WEEK)] == ["ben", "cleo"]


def test_ctrl_c_is_a_status_and_a_sentence(folder, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("grading.publish.publishing.publish", interrupted)
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as left:
        cli.main(["publish", "week13"])
    assert left.value.code == 130 and "the same command goes on" in capsys.readouterr().err


def test_formgrader_ends_by_ctrl_c_and_a_jupyter_that_fails_is_named(tmp_path, monkeypatch):
    class Process:
        def __init__(self, *ends):
            self.ends = list(ends)

        def wait(self):
            end = self.ends.pop(0)
            if isinstance(end, int):
                return end
            raise end

    started, ends = [], [KeyboardInterrupt(), KeyboardInterrupt(), 0]
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: started.append((words, how)) or Process(*ends))
    jupyter.open_formgrader(tmp_path, WEEK)
    ends[:] = [7]
    with pytest.raises(LabError, match="jupyter lab"):
        jupyter.open_formgrader(tmp_path, WEEK)
    words, how = started[0]
    assert any("/formgrader/gradebook/week13/lab" in word for word in words) and how["cwd"] == tmp_path


# -- one submission ---------------------------------------------------------------------------------------------------
@pytest.fixture
def cls(folder):
    with open_class(folder, [WEEK]) as opened:
        yield opened


def total(cls, name):
    return next(one.total for one in standings(cls, WEEK) if one.person.name == name)


def test_withdrawing_and_back(cls):
    assert total(cls, "anna") == 100
    said = list(correct(cls, "1", ["withdraw"]))
    assert any("nothing of theirs counts now" in one for one in said) and total(cls, "anna") is None
    list(correct(cls, "1", ["withdraw"], undo=True))
    assert total(cls, "anna") == 100, "with its points"
    list(correct(cls, "download.zip", ["withdraw"]))
    assert all(one.counted is None for one in standings(cls, WEEK)), "all that came from there"
    list(correct(cls, "download.zip", ["withdraw"], undo=True))
    assert total(cls, "anna") == 100


def test_another_time_moves_the_late_penalty(cls):
    list(correct(cls, "1", ["time", "2026-11-21T19:00+01:00"]))
    assert total(cls, "anna") == 90
    list(correct(cls, "1", ["time", "2026-11-20T18:59"]))
    assert total(cls, "anna") == 100 and attempt(cls, 1).received.utcoffset().total_seconds() == 3600


def test_a_misnamed_file_counts_and_is_as_it_was_again(cls):
    number = hand_in(cls, "cleo", mark(), files={"timing (1).py": b"x = 1\n", "topology.py": b"y = 2\n"})
    (said,) = correct(cls, str(number), ["rename", "timing (1).py", "timing.py"])
    assert "grade run week13" in said and attempt(cls, number).renamed == (("timing (1).py", "timing.py"),)
    assert next(one.mark for one in standings(cls, WEEK) if one.person.name == "cleo") is None, "to be graded again"
    for words in (["rename", "no.py", "timing.py"], ["rename", "topology.py", "../x.py"]):
        with pytest.raises(LabError):
            list(correct(cls, str(number), words))
    list(correct(cls, str(number), ["rename", "timing (1).py", "timing.py"], undo=True))
    assert attempt(cls, number).renamed == ()
    with pytest.raises(LabError):
        list(correct(cls, str(number), ["rename", "timing (1).py"], undo=True))

"""`grade collect` as a person sees it."""

from __future__ import annotations

import io

import pytest
import typer
from rich.console import Console

from grading.intake import commands
from labkit.errors import LabError
from tests.grading.intake.handed_in import MINE, make_week, put, put_all, zipped

COURSE = "[deadlines]\nweek91 = 2026-11-20T23:00:00+00:00\n"


@pytest.fixture
def grade(tmp_path, monkeypatch, capsys):
    """Run `grade collect ...` in a course; (status, what it printed)."""
    make_week(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    app = typer.Typer()
    app.callback()(lambda: None)
    commands.add_commands(app)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            app(["collect", *map(str, words)])
        return end.value.code, capsys.readouterr().out

    return run


def test_a_collection_and_its_table(tmp_path, grade):
    put(tmp_path / "course.toml", COURSE)
    put_all(tmp_path / "in" / "anna", {"ring.py": "1", "timestamp.txt": "2026-11-20 22:00:00 UTC"})
    put_all(tmp_path / "in" / "[b]bob", {"ring.py": "2", "timestamp.txt": "2026-11-21 12:30:00 UTC"})
    put_all(tmp_path / "in" / "carl", MINE)
    status, printed = grade("week91_rings", "--from", "in")
    assert status == 0
    lines = [line.split() for line in printed.splitlines()]
    assert ["[b]bob", "1", "2026-11-21", "12:30+00:00", "new,", "after", "the", "deadline"] in lines
    assert "anna" not in printed
    assert printed.splitlines()[-1] == (
        "submitted/week91: 3 students, 3 attempts, 3 new; of 1 nothing tells when, "
        "so they count as in time (--received TIME says when, and with --student ID also later; '*' is everybody)"
    )
    put_all(tmp_path / "in" / "anna", {"ring.py": "3", "timestamp.txt": "2026-11-20 22:30:00 UTC"})
    status, printed = grade("week91", "--from", "in")
    assert ["anna", "2", "2026-11-20", "22:30+00:00", "new"] in [line.split() for line in printed.splitlines()]
    assert "3 students, 4 attempts, 1 new" in printed


def test_a_long_class_is_not_printed_whole(tmp_path, grade):
    put(tmp_path / "course.toml", COURSE)
    for number in range(25):
        put_all(tmp_path / "in" / f"s{number:02}", {"ring.py": "1", "timestamp.txt": "2026-11-21 22:00:00 UTC"})
    _, printed = grade("week91", "--from", "in")
    assert "s19" in printed and "s20" not in printed
    assert "and 5 more with several attempts or after the deadline" in printed


def test_what_was_not_collected_gives_status_1(tmp_path, grade, monkeypatch):
    monkeypatch.setattr("grading.intake.pack.MAX_FILES", 2)
    put_all(tmp_path / "in" / "anna", MINE)
    put_all(tmp_path / "in" / "bob", {"ring.py": "1"})
    status, printed = grade("week91", "--from", "in", "--to", "there")
    assert status == 1
    assert "anna: anna has more than 2 files: it was not collected" in printed
    assert "there/week91: 1 student, 1 attempt, 1 new, 1 not collected" in printed


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("week99", "--from", "in"), "no week 'week99'; did you mean 'week91'?"),
        (("week91", "--from", "in", "--received", "yesterday"), "'yesterday' is no time with its offset from UTC"),
        (("week91", "--from", "in", "--received", "2026-11-20T23:59"), "no time with its offset"),
        (("week91", "--from", "in", "--course", "none.toml"), "no config file none.toml"),
        (("week91", "--from", "nowhere"), "no folder nowhere"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, grade, words, sentence):
    put_all(tmp_path / "in" / "anna", MINE)
    with pytest.raises(LabError, match=sentence):
        grade(*words)
    assert not (tmp_path / "submitted" / "week91" / "anna").exists()


def test_a_given_time(tmp_path, grade):
    put(tmp_path / "in.zip", zipped({"doe_LATE_4_5_x.zip": zipped(MINE)}))
    put(tmp_path / "course.toml", COURSE)
    _, printed = grade("week91", "--from", "in.zip", "--received", "2026-11-22T10:00+01:00")
    assert "2026-11-22 10:00+01:00" in printed
    _, printed = grade("week91", "--from", "in.zip", "--student", "doe_4", "--received", "2026-11-23T10:00+01:00")
    assert "doe_4, attempt 1: handed in 2026-11-23 10:00+01:00, by --received; now `grade run week91`" in printed
    _, printed = grade("week91", "--from", "in.zip", "--to", "there")
    assert ["doe_4", "1", "marked", "late", "new,", "after", "the", "deadline"] in [
        line.split() for line in printed.splitlines()
    ]


def test_progress_on_a_terminal_and_in_a_log(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=60)
    with commands._shown(screen) as progress:
        progress("keeping", 3, 7)
    assert "keeping" in screen.file.getvalue() and "3/7" in screen.file.getvalue()
    log, now = Console(file=io.StringIO(), force_terminal=False), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with commands._shown(log) as progress:
        progress("keeping", 1, 7)
        now[0] = 11
        progress("keeping", 2, 7)
        progress("keeping", 3, 7)
    assert log.file.getvalue() == "keeping: 2 of 7\n"

"""`grade forget`: all of one student, nothing of anyone else, and a kill at any moment only means to say it again."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sqlite3
import zipfile

import pytest

from grading.marks import quoted, write
from grading.reports import forget as forgetting
from grading.reports.feedback import write_pages
from grading.reports.forget import find, forget, size
from grading.reports.standing import standings
from labkit.errors import LabError
from tests.grading.reports.aclass import mark

NAMES = ("anna", "anna b", "ann", "anna+week13", "..", "a/b", 'O\'Neill, "Zoë"', "דנה")


def put(path, text="x = 1\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(week, tmp_path):
    """Marks of several weeks and attempts, submissions in several layouts, and feedback of everybody."""
    for name in NAMES:
        for attempt in (1, 2):
            write(tmp_path / "marks", mark(name, attempt=attempt))
        write(tmp_path / "marks", mark(name, assignment="week14"))
    list(write_pages(week, standings(week, tmp_path / "marks", tmp_path), tmp_path / "feedback", lambda s: {}))
    collected = tmp_path / "submitted" / "week13"
    put(collected / "collected.json", json.dumps({"assignment": "week13", "format": 1}))
    for name in NAMES:
        put(collected / quoted(name) / "1.zip")
        put(
            collected / quoted(name) / "1.json",
            json.dumps({"student": name, "attempt": 1, "received": "", "name": "a.zip", "digest": "", "format": 1}),
        )
    return tmp_path


def places_of(student, week, root, **more):
    folders = {
        "marks": root / "marks",
        "submissions": root / "submitted",
        "feedback": root / "feedback",
        "course": root,
        "rules": root / "course.toml",
    }
    return find(student, [week], **{**folders, **more})


def everything(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in root.rglob("*")
    }


@pytest.mark.parametrize("student", NAMES)
def test_all_of_one_and_nothing_of_the_others(student, week, root):
    before = everything(root)
    places = places_of(student, week, root)
    assert [place.what for place in places.found] == [
        "marks of week13",
        "marks of week14",
        "what was handed in, week13",
        "feedback",
    ]
    assert not places.told and not places.unread
    assert len(list(forget(places))) == 4
    mine = [
        f"marks/week13/{quoted(student)}",
        f"marks/week14/{quoted(student)}",
        f"submitted/week13/{quoted(student)}",
        f"feedback/{quoted(student)}",
    ]
    assert everything(root) == {
        path: data
        for path, data in before.items()
        if not any(path == one or path.startswith(one + "/") for one in mine)
    }
    assert places_of(student, week, root).found == []


@pytest.mark.parametrize("student", ["ann", "anna"])
def test_submissions_as_they_came(student, week, tmp_path):
    """nbgrader's folders, an archive for each, Canvas' and Moodle's downloads, the exchange: in one folder each."""
    root = tmp_path / "submitted"
    for name in ("ann", "anna"):
        put(root / "folders" / name / "week13" / "a.py")
        put(root / "folders" / name / "week14" / "b.py")
        put(root / "exchange" / f"{name}+week13+2026-11-20 10:00:00.000000 UTC+abcdefghijkl" / "a.py")
        put(root / "exchange" / f"{name}+week13+2026-11-20 11:00:00.000000 UTC" / "a.py")
        put(root / "lms" / f"{name}_1234_assignsubmission_file" / "a.py")
        (root / "zips").mkdir(exist_ok=True)
        with zipfile.ZipFile(root / "zips" / f"{name}.zip", "w") as archive:
            archive.writestr("a.py", "x = 1")
    put(root / "folders" / "anna+" / "week13" / "a.py")
    other = {"ann": "anna", "anna": "ann"}[student]
    count = {"folders": 1, "exchange": 2, "lms": 1, "zips": 1}
    for layout, many in count.items():
        before = everything(root / layout)
        places = places_of(student, week, tmp_path, submissions=root / layout)
        assert len(places.found) == many, layout
        list(forget(places))
        after = everything(root / layout)
        assert after and all(before[path] == data for path, data in after.items())
        mine = (f"{student}+week13", f"{student}_", f"{student}.")
        assert set(before) - set(after) == {
            path for path in before if path.startswith(mine) or path.split("/")[0] == student
        }, layout
        assert any(path.startswith(other) for path in after)


def test_a_folder_that_holds_other_weeks_only_goes_too(week, tmp_path):
    put(tmp_path / "submitted" / "anna" / "week14" / "b.py")
    put(tmp_path / "submitted" / "ann" / "week14" / "b.py")
    list(forget(places_of("anna", week, tmp_path)))
    assert [path.name for path in (tmp_path / "submitted").iterdir()] == ["ann"]


def test_killed_at_any_moment_the_same_command_completes(week, root, monkeypatch):
    """It stops before, and in the middle of, each removal."""
    wanted = None
    real = os.unlink
    for stop in range(40):
        write(root / "marks", mark("anna"))
        write(root / "marks", mark("anna", assignment="week14"))
        put(root / "submitted" / "week13" / "anna" / "1.zip")
        put(root / "submitted" / "week13" / "anna" / "1.json", "{}")
        put(root / "feedback" / "anna" / "week13.html")
        left = stop

        def unlink(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return real(*args, **kwargs)

        monkeypatch.setattr(os, "unlink", unlink)
        try:
            list(forget(places_of("anna", week, root)))
            finished = True
        except KeyboardInterrupt:
            finished = False
        monkeypatch.setattr(os, "unlink", real)
        list(forget(places_of("anna", week, root)))
        wanted = wanted or everything(root)
        assert everything(root) == wanted and not any(path.split("/")[-1] == "anna" for path in wanted)
        if finished:
            break
    assert finished and stop >= 4, "it was stopped at each of its removals"


def test_links_are_removed_and_not_followed(week, tmp_path):
    put(tmp_path / "outside" / "precious.txt")
    os.makedirs(tmp_path / "marks" / "week13")
    os.symlink(tmp_path / "outside", tmp_path / "marks" / "week13" / "anna")
    put(tmp_path / "feedback" / "anna" / "a.html")
    os.symlink(tmp_path / "outside", tmp_path / "feedback" / "anna" / "link")
    places = places_of("anna", week, tmp_path)
    assert [size(place.path)[0] for place in places.found] == [1, 2]
    list(forget(places))
    assert (tmp_path / "outside" / "precious.txt").exists() and places_of("anna", week, tmp_path).found == []


def test_pages_and_tables_of_the_class_are_told_and_left(week, root):
    from grading.reports.class_page import html
    from grading.reports.export import export
    from grading.reports.overview import overview

    here = standings(week, root / "marks", root)
    (root / "class.html").write_text(html(overview(week, here)))
    export(week, here, root / "all.csv")
    put(root / "other.csv", "anna,3\n")
    # The page names who is slow or failed; in this class that is everybody.
    for name in ("anna", 'O\'Neill, "Zoë"', "דנה"):
        told = places_of(name, week, root).told
        assert [sentence.partition(" ")[0] for sentence in told] == [str(root / "all.csv"), str(root / "class.html")]
    assert places_of("nn", week, root).told == [] and (root / "class.html").exists()


@pytest.mark.parametrize(
    "name, text",
    [
        ("similar.html", ""),
        ("moodle.csv", 'Identifier,"Full name",Grade\n"Participant 901",Jane Doe,87\n"Participant 902",Li Wei,9\n'),
        ("gradebook-export.csv", "Student,ID,SIS Login ID,Section\nPoints Possible,,,\nJane D,4567,jd,\n"),
        ("roster.csv", "ben\njdoe\n"),
        ("download.zip", "doejane_4567_89_a.py"),
        ("upload.zip", "Jane Doe_901_assignsubmission_file_/week13.html"),
    ],
)
def test_what_names_a_student_among_others_is_told_whatever_made_it(week, tmp_path, name, text):
    """By our id or by a platform's name for them; and of who is not in it nothing is said."""
    from grading.similar import page as similar

    put(
        tmp_path / "course.toml", '[ids]\n"doejane_4567" = "jdoe"\n"Jane Doe" = "jdoe"\n[roster]\nfile = "roster.csv"\n'
    )
    write(tmp_path / "marks", mark("jdoe"))
    if name.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(text, "x")
    elif name == "similar.html":
        similar.write(week, [], 2, ["jdoe"], 0.5, tmp_path / name)
    else:
        put(tmp_path / name, text)
    told = [sentence for sentence in places_of("jdoe", week, tmp_path).told if "course.toml" not in sentence]
    assert [sentence.partition(" ")[0] for sentence in told] == [str(tmp_path / name)]
    assert places_of("doe", week, tmp_path).told == []


def test_the_rules_tell_what_a_platform_calls_them_and_are_left_to_a_person(week, root):
    put(
        root / "course.toml",
        '[deadlines]\nweek13 = 2026-11-20T23:59:00+01:00\n[ids]\n"doe_4567" = "anna"\n'
        "[extensions.ann]\nweek13 = 2026-11-27T23:59:00+01:00\n",
    )
    put(root / "lms" / "doe_4567_89_a.py")
    put(root / "lms" / "doe_4568_90_a.py")
    places = places_of("anna", week, root, submissions=root / "lms")
    assert [p.path.name for p in places.found if p.what == "what was handed in"] == ["doe_4567_89_a.py"]
    assert places.told == [f"{root / 'course.toml'} names this student: take the lines out"]
    assert places_of("ann", week, root).told and not places_of("..", week, root).told
    put(root / "course.toml", '[excused]\nweek13 = ["ben"]\n')
    assert places_of("ben", week, root).told[:1] == [f"{root / 'course.toml'} names this student: take the lines out"]
    assert not places_of("anna", week, root).told
    put(root / "course.toml", "[deadline]\n")
    assert places_of("anna", week, root).unread and len(places_of("anna", week, root).found) == 4


def test_somebody_s_damaged_receipt_does_not_stand_in_the_way(week, root):
    put(root / "submitted" / "week13" / "ann" / "1.json", "{")
    assert len(places_of("anna", week, root).found) == 4


def test_a_folder_that_cannot_be_searched_is_told(week, root):
    put(root / "elsewhere" / "collectives.py")
    places = places_of("anna", week, root, submissions=root / "elsewhere")
    assert len(places.unread) == 1 and "was not searched" in places.unread[0] and len(places.found) == 3


def test_what_cannot_be_removed_is_one_sentence(week, root, monkeypatch):
    def refused(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(forgetting.shutil, "rmtree", refused)
    with pytest.raises(LabError, match="cannot be removed .Permission denied.: get the right"):
        list(forget(places_of("anna", week, root)))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A course directory with three students, whose comments and folders are known. Made once: it takes seconds."""
    from grading.gradebook.init import init
    from grading.gradebook.load import load
    from labkit.checks.tasks import find_week, find_weeks
    from tests.grading.gradebook.samples import by_hand, make, put_marks
    from tests.grading.gradebook.samples import mark as small

    root = tmp_path_factory.mktemp("template")
    source = make(root / "source")
    course = init(root / "course", source=source, exchange=root / "exchange").course
    week = find_week("week91", find_weeks(source))
    put_marks(root / "marks", *map(small, ("ann", "anna", "a/b")))
    load(course, week, root / "marks")
    by_hand(course, "anna", "task-91-2", 5, "SECRET REMARK " * 20)
    by_hand(course, "ann", "task-91-2", 5, "OPEN REMARK")
    for name in ("ann", "anna"):
        put(course.root / "submitted" / name / "week91" / "lab.ipynb")
        inbound = root / "exchange" / course.id / "inbound"
        put(inbound / f"{name}+week91+2026-11-20 10:00:00.000000 UTC" / "a.py")
    return root


@pytest.mark.skipif(importlib.util.find_spec("nbgrader") is None, reason="nbgrader is not installed")
class TestWithNbgrader:
    @pytest.fixture
    def course(self, template, tmp_path):
        """The template's copy, to take things out of."""
        from grading.gradebook.course import CONFIG, open_course
        from labkit.checks.tasks import find_week, find_weeks

        shutil.copytree(template, tmp_path, dirs_exist_ok=True)
        config = tmp_path / "course" / CONFIG
        assert str(template) in config.read_text()
        config.write_text(config.read_text().replace(str(template), str(tmp_path)))
        return open_course(tmp_path / "course"), find_week("week91", find_weeks(tmp_path / "source"))

    @pytest.mark.thorough
    def test_rows_and_folders_go_and_the_others_stay(self, course, tmp_path):
        from tests.grading.gradebook.samples import rows

        course, week = course
        before = rows(course)
        base = course.root / "gradebook.db"
        with contextlib.closing(sqlite3.connect(base)) as changed:  # what SQLite keeps of an older version
            changed.execute("pragma secure_delete=off")
            for remark in ("OLDER REMARK " * 5000, "SECRET REMARK " * 20):
                changed.execute(
                    "update comment set manual_comment=? where manual_comment like 'SECRET%' or "
                    "manual_comment like 'OLDER%'",
                    (remark,),
                )
                changed.commit()
        assert b"OLDER REMARK" in base.read_bytes() and b"SECRET REMARK" in base.read_bytes()
        places = places_of("anna", week, tmp_path, course=course.root)
        assert {place.what for place in places.found} == {
            "marks of week91",
            "nbgrader's submitted/",
            "nbgrader's autograded/",
            "rows in nbgrader's gradebook",
            "what was handed in",
        }
        list(forget(places))
        assert rows(course) == [row for row in before if "anna" not in row]
        assert b"REMARK" in base.read_bytes(), "the others' comments"
        assert b"SECRET REMARK" not in base.read_bytes() and b"OLDER REMARK" not in base.read_bytes()
        with contextlib.closing(sqlite3.connect(base)) as read:
            assert read.execute("pragma integrity_check").fetchone() == ("ok",)
            for table, column, parent in (
                ("grade", "notebook_id", "submitted_notebook"),
                ("comment", "notebook_id", "submitted_notebook"),
                ("submitted_notebook", "assignment_id", "submitted_assignment"),
            ):
                orphans = f"select 1 from {table} where {column} not in (select id from {parent})"
                assert not read.execute(orphans).fetchall()
        left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
        assert not [path for path in left if "/anna" in path]
        assert [path for path in left if path.endswith("submitted/ann")]
        assert places_of("anna", week, tmp_path, course=course.root).found == []

    def test_what_a_group_has_through_this_copy_alone_is_told(self, course, tmp_path):
        from grading.gradebook.load import load
        from tests.grading.gradebook.samples import by_hand, put_marks
        from tests.grading.gradebook.samples import mark as small

        course, week = course
        marks = tmp_path / "in groups"
        team = {"group": "Team_70", "submission": "same"}
        load(course, week, put_marks(marks, *(small(name, **team) for name in ("lena", "max")), small("eva")))
        for name in ("lena", "eva"):
            by_hand(course, name, "task-91-2", 5)
        (told,) = places_of("lena", week, tmp_path, course=course.root, marks=marks).told
        assert told.startswith("week91, 91.2: 5 of their group's points stood at this student's copy alone;")
        assert told.endswith("give them at the copy of max")
        for one in ("max", "eva"):
            assert not places_of(one, week, tmp_path, course=course.root, marks=marks).told
        by_hand(course, "max", "task-91-2", 4)
        assert not places_of("lena", week, tmp_path, course=course.root, marks=marks).told

    def test_a_comment_is_no_points_of_a_group(self, course, tmp_path):
        from grading.gradebook.load import load
        from tests.grading.gradebook.samples import by_hand, put_marks
        from tests.grading.gradebook.samples import mark as small

        course, week = course
        marks = tmp_path / "in groups"
        team = {"group": "Team_70", "submission": "same"}
        load(course, week, put_marks(marks, *(small(name, **team) for name in ("lena", "max"))))
        by_hand(course, "lena", "task-91-2", comment="Why?")
        assert not places_of("lena", week, tmp_path, course=course.root, marks=marks).told
        by_hand(course, "lena", "task-91-2", 5)
        by_hand(course, "max", "task-91-2", comment="Why?")
        (told,) = places_of("lena", week, tmp_path, course=course.root, marks=marks).told
        assert told.endswith("give them at the copy of max")

    def test_a_name_that_nbgrader_knows_otherwise(self, course, tmp_path):
        course, week = course
        places = places_of("a/b", week, tmp_path, course=course.root)
        assert {place.what for place in places.found} == {
            "marks of week91",
            "nbgrader's submitted/",
            "nbgrader's autograded/",
            "rows in nbgrader's gradebook",
        }
        list(forget(places))
        assert places_of("a/b", week, tmp_path, course=course.root).found == []

    def test_by_any_name_of_the_student_the_rows_go_that_are_shown(self, course, tmp_path, week):
        """They are in the gradebook under another name than the one that was typed."""
        from tests.grading.gradebook.samples import rows

        course, of_course = course
        put(tmp_path / "course.toml", '[ids]\n"annameier_9" = "anna"\n')
        put(tmp_path / "table.csv", '"student","total"\n"anna","12"\n')
        before = rows(course)
        places = places_of("annameier_9", of_course, tmp_path, course=course.root)
        assert f"{tmp_path / 'table.csv'} names this student: make it again, or delete it" in places.told
        list(forget(places))
        assert rows(course) == [row for row in before if "anna" not in row] != before

    def test_killed_among_the_rows_nothing_or_everything_is_gone(self, course, tmp_path, monkeypatch):
        from sqlalchemy.orm import Session

        from tests.grading.gradebook.samples import rows

        course, week = course
        before = rows(course)
        real = Session.delete
        for stop in (1, 3, 6):
            left = iter(range(1, stop))

            def delete(self, row, left=left):
                if next(left, None) is None:
                    raise KeyboardInterrupt
                real(self, row)

            monkeypatch.setattr(Session, "delete", delete)
            with pytest.raises(KeyboardInterrupt):
                forgetting._forget_rows(course, "anna")
            monkeypatch.setattr(Session, "delete", real)
            assert rows(course) == before, stop
        list(forget(places_of("anna", week, tmp_path, course=course.root)))
        assert rows(course) == [row for row in before if "anna" not in row]

    def test_killed_after_the_rows_went_their_text_is_not_left_in_the_file(self, course, tmp_path):
        from sqlalchemy import event
        from sqlalchemy.engine import Engine

        course, _ = course
        base = course.root / "gradebook.db"

        def stop(connection, cursor, statement, *rest):
            if statement == "VACUUM":
                raise KeyboardInterrupt

        with contextlib.closing(sqlite3.connect(base)) as changed:  # pages that a rebuild would tidy away
            changed.execute(
                "update comment set manual_comment=? where manual_comment like 'SECRET%'", ("SECRET REMARK " * 5000,)
            )
            changed.commit()
        event.listen(Engine, "before_cursor_execute", stop)
        try:
            with pytest.raises(KeyboardInterrupt):
                forgetting._forget_rows(course, "anna")
        finally:
            event.remove(Engine, "before_cursor_execute", stop)
        assert b"SECRET REMARK" not in base.read_bytes()

    def test_a_second_markers_directory_beside_it_is_searched_too(self, course, tmp_path):
        from grading.gradebook.course import SAMPLE, open_course
        from tests.grading.gradebook.samples import rows

        course, week = course
        shutil.copytree(course.root, tmp_path / "second")
        put(tmp_path / "second" / SAMPLE, json.dumps({"week91": ["ann", "anna"]}))
        second = open_course(tmp_path / "second")
        before = rows(second)
        places = places_of("anna", week, tmp_path, course=course.root)
        assert [sentence.partition(" ")[0] for sentence in places.told] == [str(second.root / SAMPLE)]
        list(forget(places))
        assert rows(second) == rows(course) == [row for row in before if "anna" not in row]
        assert not (second.root / "autograded" / "anna").exists() and (second.root / "autograded" / "ann").exists()

    def test_copies_of_the_gradebook_are_told(self, course, tmp_path):
        course, week = course
        put(course.root / "gradebook.db.2026-11-20T10:00:00.000000")
        told = places_of("anna", week, tmp_path, course=course.root).told
        assert len(told) == 1 and "copy of the gradebook" in told[0]

"""`grade publish`: what blocks comes first, then everything that leaves, and the next time says what changed."""

import zipfile

import pytest

from grading.intake.arrival import Key
from grading.publish.platforms import keep_worksheet
from grading.publish.publishing import Wishes, publish
from grading.register.classes import init_class
from grading.register.people import learn
from grading.register.problems import problems
from grading.register.standing import ABOVE
from grading.register.submissions import withdraw
from labkit.checks.tasks import load_week
from labkit.errors import LabError
from tests.grading.publish.aclass import LATE, ROOT, WEEK, a_class, hand_in, hand_points, mark, person, spoil
from tests.grading.publish.looking import assert_one_harmless_file, read_rows, read_table

SECOND = load_week(ROOT / "week14_fsdp")


def points(made):
    return {one.name: (was, now) for one, was, now in made.changed}


def below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def cls(tmp_path):
    """Two of three ids have handed in, all points given."""
    with a_class(tmp_path / "autumn", ["anna", "ben", "cleo"], LATE) as opened:
        for name, given in (("anna", 10), ("ben", 15)):
            hand_points(opened, hand_in(opened, name, mark()), "13.7", given)
        yield opened


def test_everything_that_leaves(cls):
    own = {path: path.read_bytes() for path in (cls.folder / "course.toml", cls.folder / "roster.csv")}
    made = publish(cls, WEEK, Wishes())
    assert {path: path.read_bytes() for path in own} == own
    assert below(cls.folder / "published") == [
        "term.csv", "week13/all.csv", "week13/class.html", "week13/feedback/anna/week13.html",
        "week13/feedback/ben/week13.html",
    ]  # fmt: skip
    assert [(one.name, path.name) for one, _, path in made.pages] == [("anna", "week13.html"), ("ben", "week13.html")]
    totals = {row["student"]: row["total"] for row in read_table(made.folder / "all.csv")}
    assert totals == {"anna": "90", "ben": "95", "cleo": ""} and made.overview.absent == ["cleo"]
    assert_one_harmless_file((made.folder / "class.html").read_text())
    for path in (cls.folder / "published").rglob("*.*"):
        assert path.stat().st_mode & 0o007 == 0, "for nobody else"


def test_zeros_are_of_one_week_and_stay(tmp_path):
    with a_class(tmp_path, ["anna", "ben"], LATE, (WEEK, SECOND)) as cls:
        hand_points(cls, hand_in(cls, "anna", mark()), "13.7", 10)
        hand_in(cls, "anna", mark(week="week14"), place=1)

        def published(**wishes):
            made = publish(cls, WEEK, Wishes(**wishes))
            rows = {row["student"]: row for row in read_table(cls.folder / "published/term.csv")}
            assert "week14 (100)" not in next(iter(rows.values())), "it was not published"
            return {who: row["week13 (100)"] for who, row in rows.items()}, points(made)

        assert published() == ({"anna": "90", "ben": ""}, {})
        assert published(zeros=True) == ({"anna": "90", "ben": "0"}, {})
        (tmp_path / "newer.csv").write_text("student\nanna\nben\nlate\n")
        init_class(tmp_path, tmp_path / "newer.csv", "", cls.weeks)
        assert published() == ({"anna": "90", "ben": "0", "late": "0"}, {}), "their platform has it"
        assert published(zeros=False) == ({"anna": "90", "ben": "", "late": ""}, {"ben": (0, None), "late": (0, None)})
        assert published()[0]["ben"] == ""
        publish(cls, SECOND, Wishes())
        term = read_table(cls.folder / "published/term.csv")
        assert {(row["week13 (100)"], row["week14 (100)"]) for row in term} == {("90", ""), ("", "")}


def test_no_points_and_no_page_leave_that_a_person_has_yet_to_decide(cls):
    page = cls.folder / "published/week13/feedback/anna/week13.html"
    publish(cls, WEEK, Wishes())
    assert page.exists()
    hand_points(cls, 1, "13.7", 25)
    made = publish(cls, WEEK, Wishes())
    assert points(made) == {"anna": (90, None)} and any("no page" in one and "anna" in one for one in made.notes)
    assert [one.name for one, _, _ in made.pages] == ["ben"] and not page.exists()
    assert any(one.kind == ABOVE and "anna" in one.sentence for one in problems(cls, WEEK))
    hand_points(cls, 1, "13.7", 20, extra=5)
    assert points(publish(cls, WEEK, Wishes())) == {"anna": (None, 105)} and page.exists()


def test_nothing_is_published_of_a_class_without_a_mark(tmp_path):
    with a_class(tmp_path, ["anna"]) as opened, pytest.raises(LabError, match="grade run"):
        publish(opened, WEEK, Wishes())


def test_a_second_time_says_whose_total_changed(cls):
    assert points(publish(cls, WEEK, Wishes())) == points(publish(cls, WEEK, Wishes())) == {}
    hand_points(cls, 1, "13.7", 20)
    assert points(publish(cls, WEEK, Wishes())) == {"anna": (90, 100)}
    withdraw(cls, [2])
    assert points(publish(cls, WEEK, Wishes())) == {"ben": (95, None)}
    folders = [path.name for path in (cls.folder / "published/week13/feedback").iterdir()]
    assert folders == ["anna"], "a page of before goes with its submission"
    assert points(publish(cls, WEEK, Wishes(zeros=True))) == {"ben": (None, 0)}
    rows = cls.db.execute("SELECT person, total FROM published WHERE person = ? ORDER BY at", (person(cls, "anna"),))
    assert [row["total"] for row in rows] == [90, 100], "what was published when stays on record"


def test_pages_wait_while_anybody_may_hand_in_and_grades_do_not(cls):
    with a_class(cls.folder, "", LATE + "[extensions.cleo]\nweek13 = 2999-01-01T00:00:00+00:00\n") as opened:
        made = publish(opened, WEEK, Wishes())
        assert made.pages == [] and any("cleo" in one and "--anyway" in one for one in made.notes)
        assert below(opened.folder / "published") == ["term.csv", "week13/all.csv", "week13/class.html"]
        assert len(publish(opened, WEEK, Wishes(pages=True)).pages) == 2
        assert publish(opened, WEEK, Wishes()).pages == []
        assert not list((opened.folder / "published").rglob(f"{WEEK.name}.html")), (
            "what has changed since is not in them"
        )


@pytest.mark.parametrize("wished", [False, True])
def test_a_page_has_the_comment_as_students_read_it_and_what_was_printed_only_if_wished(cls, wished):
    number = hand_in(cls, "cleo", spoil(mark(), "test_algbw", "wrong", "no", printed="peeked"))
    hand_points(cls, number, "13.7", 10, "#units, please")
    with a_class(cls.folder, "", LATE + '[comments]\nunits = "State the unit"\n') as opened:
        made = publish(opened, WEEK, Wishes(printed=wished))
    text = next(path for one, _, path in made.pages if one.name == "cleo").read_text()
    assert ("peeked" in text) == wished and "State the unit, please" in text


# -- platforms --------------------------------------------------------------------------------------------------------
@pytest.fixture
def platform(system, exported, tmp_path):
    """(class of the platform's own roster, which system): Anna alone has handed in."""
    with a_class(tmp_path / "autumn", exported, LATE) as opened:
        hand_points(opened, hand_in(opened, "anna@x.org", mark()), "13.7", 10)
        if system == "moodle":
            (tmp_path / "sheet.csv").write_text(exported)
            keep_worksheet(opened, WEEK, tmp_path / "sheet.csv")
        yield opened, system


def test_the_table_that_the_class_keeps_is_filled_until_a_newer_one_is_named(platform, exported, tmp_path):
    cls, system = platform
    made = publish(cls, WEEK, Wishes())
    assert made.grades.path == cls.folder / "published" / "week13" / f"{system}.csv"
    assert made.grades.column == ("Week 13 (4711)" if system == "canvas" else "")
    rows = read_rows(made.grades.path)
    assert rows[2 if system == "canvas" else 1][5] == "90"
    newer = tmp_path / "newer.csv"
    newer.write_text(exported.replace("Müller", "Mueller"))
    publish(cls, WEEK, Wishes(table=newer, assignment="Our task" if system == "canvas" else None))
    text = publish(cls, WEEK, Wishes()).grades.path.read_text()
    assert "Mueller" in text and ("Our task" in text) == (system == "canvas"), "both are kept for the week"
    newer.write_text("\n".join(line for line in exported.splitlines() if "Anna" not in line))
    gone = publish(cls, WEEK, Wishes(table=newer))
    assert points(gone) == {} and gone.grades.grades == {}, "the total is the same, wherever it can be written"
    (tmp_path / "ids.csv").write_text("student\nanna\n")
    with pytest.raises(LabError, match="neither"):
        publish(cls, WEEK, Wishes(table=tmp_path / "ids.csv"))


@pytest.mark.parametrize("system", ["moodle"], indirect=True)
def test_moodles_roster_is_another_assignments_worksheet_and_is_not_filled(platform):
    cls, system = platform
    cls.archive(WEEK, 0).with_name("worksheet.csv").unlink()
    known(cls, system, "anna@x.org", 501)
    made = publish(cls, WEEK, Wishes())
    assert made.grades is None and any("worksheet" in one for one in made.notes)


def known(cls, system, name, *numbers):
    """The keys by which a download or a worksheet made somebody known: a participant's, or of files."""
    learn(cls, person(cls, name), [Key(system, str(one), "week13") for one in numbers])


def packed(made):
    with zipfile.ZipFile(made.folder / "upload.zip") as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_upload_zip_has_the_names_that_the_platform_takes_back(platform):
    cls, system = platform
    known(cls, system, "anna@x.org", *((999, 7001, 7005) if system == "canvas" else (501,)))
    learn(cls, person(cls, "anna@x.org"), [Key("canvas", "99101")] * (system == "canvas"), "who")  # another account
    made = publish(cls, WEEK, Wishes())
    ((name, page),) = packed(made).items()
    want = "101_7005_week13.html" if system == "canvas" else "Anna Müller_501_assignsubmission_file_week13.html"
    assert name == want and "Anna" in page and made.packed.without == []
    before = (made.folder / "upload.zip").read_bytes()
    hand_points(cls, hand_in(cls, "sean@x.org", mark()), "13.7", 5)
    made = publish(cls, WEEK, Wishes())
    assert (made.folder / "upload.zip").read_bytes() == before, "the same pages, the same archive"
    assert [one.email for one in made.packed.without] == ["sean@x.org"], "the platform does not know him"
    assert any("O'Brien" in one for one in made.notes)


def test_each_member_of_a_group_has_a_name_of_their_own(platform):
    cls, system = platform
    known(cls, system, "anna@x.org", 501)
    if system == "moodle":
        known(cls, system, "sean@x.org", 502)
    hand_points(cls, hand_in(cls, ["anna@x.org", "sean@x.org"], mark(), days_late=0.1), "13.7", 5)
    made = publish(cls, WEEK, Wishes())
    totals = [row["total"] for row in read_table(made.folder / "all.csv")]
    assert sorted(totals) == ["", "85", "85"], "it is marked once"
    names = sorted(packed(made))
    if system == "canvas":
        assert names == ["101_501_week13.html", "102_501_week13.html"], "a group's file is every member's"
    else:
        assert names == [f"{who}_assignsubmission_file_week13.html" for who in ("Anna Müller_501", "Sean O'Brien_502")]

"""[excused]: a week that is neither a zero nor possible points for a student, in every table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from grading.intake import roster
from grading.intake.excused import Excused
from grading.intake.policy import Roster as RosterRules
from grading.intake.policy import Rules
from grading.marks import write
from grading.reports import canvas, changed, moodle, term
from grading.reports.by_hand import ByHand
from grading.reports.export import table
from grading.reports.feedback import feedback
from grading.reports.mail import text
from grading.reports.record import told
from grading.reports.standing import NOT_COUNTED, Standing, standings
from grading.reports.status import _cells, status, summary
from tests.grading.reports.aclass import mark
from tests.grading.reports.looking import read_table

NOW = datetime(2026, 12, 1, tzinfo=UTC)
DUE = {"week13": datetime(2026, 11, 20, tzinfo=UTC)}
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Week 13 (9)
    Points Possible,,,,,100
"Doe, Jane",4567,,jane,,
"Joiner, Jonas",4711,,jonas,,
"Roe, Max",4568,,max,,
"""
WORKSHEET = 'Identifier,Full name,Grade\n"Participant 1",anna,\n"Participant 2",jonas,40\n"Participant 3",max,\n'


def rules(*names, **more):
    return Rules(excused={"week13": list(names)}, deadlines=DUE, **more)


def who(tmp_path, content):
    (tmp_path / "roster.csv").write_text(content)
    return roster.read(tmp_path / "roster.csv")


def done(name, points=20):
    return Standing(mark(name), [1], by_hand={"13.7": ByHand("13.7", points)})


def test_status_has_them_as_excused_whatever_came(week, tmp_path):
    """With a mark that waits for a person, without a mark, without a hand-in, in the roster and not."""
    for name in ("anna", "ben"):
        write(tmp_path / "marks", mark(name))
    for name in ("anna", "ben", "cleo"):
        (tmp_path / "submitted" / name / "week13").mkdir(parents=True)
        (tmp_path / "submitted" / name / "week13" / "collectives.py").write_text("x = 1\n")
    (tmp_path / "who.csv").write_text("anna\nben\ncleo\ndora\njonas\n")

    def seen(names, given):
        return status(week, tmp_path / "submitted", tmp_path / "marks", tmp_path, rules(*names), NOW, given)

    everybody = ("ben", "cleo", "jonas", "eva")
    found = seen(everybody, tmp_path / "who.csv")
    assert [(row.student, row.state) for row in found.rows] == [
        ("anna", "to be graded by hand"),
        ("ben", "excused"),
        ("cleo", "excused"),
        ("dora", "missing"),
        ("eva", "excused"),
        ("jonas", "excused"),
    ]
    assert summary(found) == ("week13: 3 handed in, 2 graded, 1 wait for a person, 2 late, 1 missing, 4 excused")
    assert [row.state for row in seen(everybody, None).rows] == ["to be graded by hand", *["excused"] * 4]
    unknown = [one for one in found.told if "[excused]" in one]
    assert unknown == [
        "[excused] in course.toml, week13, speaks of eva, who is not in who.csv, the marks or the hand-ins"
    ]
    back = seen((), tmp_path / "who.csv")
    assert [row.state for row in back.rows[:3]] == ["to be graded by hand"] * 2 + ["not graded yet"], "nothing is lost"
    assert "excused" not in summary(back)


def test_points_stay_on_record_and_no_total_is_shown(week, tmp_path):
    late = mark("jonas", received="2027-01-01T00:00:00+00:00", unanswered=["13.7"])
    write(tmp_path, late)
    closed = rules("jonas").model_copy(update={"late": Rules.model_validate({"late": {"closes_after_days": 1}}).late})
    (row,) = status(week, tmp_path / "none", tmp_path, tmp_path, closed, NOW).rows
    cells = list(_cells(row))
    assert cells[-2:] == ["", "excused"] and "80 / 80" in cells
    (jonas,) = standings(week, tmp_path, tmp_path, rules("jonas"))
    assert jonas.points(jonas.mark.tasks[0]) == 15 and jonas.excused
    assert NOT_COUNTED in feedback(week, jonas) and NOT_COUNTED in " ".join(text(week, jonas).split())
    assert told(week, jonas, None, tmp_path)[0].endswith("excused")
    jonas.excuse()
    assert jonas.rule.count(NOT_COUNTED) == 1
    (other,) = standings(week, tmp_path, tmp_path, rules("anna"))
    assert not other.excused and NOT_COUNTED not in feedback(week, other)


def test_the_weeks_table_has_neither_a_total_nor_possible_points(week):
    jonas = done("jonas")
    jonas.excuse()
    head, *rows = table(week, [done("anna"), jonas], excused=["eva"], zeros=True)
    cells = [[row[head.index(name)] for name in ("student", "total", "possible", "state")] for row in rows]
    assert cells == [["anna", 100, 100, "complete"], ["jonas", None, None, "excused"], ["eva", None, None, "excused"]]


def test_canvas_gets_ex_and_moodle_an_empty_cell(week, tmp_path):
    jonas, open_ = done("joinerjonas_4711"), Standing(mark("max"), [1])
    jonas.excuse()
    open_.excuse()
    there = who(tmp_path, CANVAS)
    for more in ({}, {"automatic_only": False, "rules": Rules()}):
        written = canvas.export(week, [jonas, open_], tmp_path / "c.csv", roster=there, excused=["jane", "eva"], **more)
        lines = (tmp_path / "c.csv").read_text().splitlines()[2:]
        assert [line.rpartition(",")[2] for line in lines] == ['"EX"'] * 3 and written.lines == 3
        assert written.told == ["1 student left out (not in the roster): eva"]
    written = canvas.export(week, [jonas], tmp_path / "c.csv", excused=["eva"])
    assert '"eva","","","eva","","EX"' in (tmp_path / "c.csv").read_text() and written.lines == 2
    sheet, jonas = who(tmp_path, WORKSHEET), done("jonas")
    jonas.excuse()
    written = moodle.export(week, [done("anna"), jonas], tmp_path / "m.csv", sheet, Rules())
    assert [row["Grade"] for row in read_table(tmp_path / "m.csv")] == ["100", "", ""] and written.lines == 1
    assert written.told == ["1 student left out (excused: a grade that Moodle has already stays): jonas"]


def test_the_term_counts_the_week_neither_in_the_sum_nor_in_what_is_possible(week, tmp_path):
    later, there = replace(week, name="week14"), who(tmp_path, CANVAS)
    free = rules("joinerjonas_4711", "max")
    gone = roster.absent("week13", ["jane"], there, free, NOW)
    first = term.Part(week, [done("jane", 10)], gone)
    second = term.Part(later, [done("jane"), done("joinerjonas_4711", 0), done("max", 5)])
    made = term.table([first, second], there, free, zeros=True)
    head, *rows = made.rows
    columns = ("student", "week13 (100)", "total", "possible", "excused", "open")
    assert head[-1] == "open" and [[row[head.index(name)] for name in columns] for row in rows] == [
        ["jane", 90, 190, 200, "", ""],
        ["joinerjonas_4711", None, 80, 100, "week13", ""],
        ["max", None, 85, 100, "week13", ""],
    ]
    assert made.open == 0 and made.excused == ["joinerjonas_4711 (week13)", "max (week13)"]
    # A mark that is there does not count, and who is excused from everything has no sum.
    jonas = done("jonas")
    jonas.excuse()
    made = term.table([term.Part(week, [done("jane"), jonas])], None, rules("jonas"))
    assert [row[2:] for row in made.rows[1:]] == [[100, 100, "", ""], [None, 0, "week13", ""]]
    plain = term.table([first, second], there, rules(), zeros=True)
    assert "excused" not in plain.rows[0] and all(len(row) == len(plain.rows[0]) for row in plain.rows)


def test_a_name_of_the_roster_excuses_whom_it_is(week, tmp_path):
    there = who(tmp_path, CANVAS + '"Roe, Max",4569,,max2,,\n')
    freed = Excused("week13", rules("Joiner, Jonas", "doejane_4567", "Roe, Max"), there)
    assert all(name in freed for name in ("joinerjonas_4711", "jonas", "jane")) and "max2" not in freed
    assert Excused("week14", freed.rules, there).names == [] and "jonas" not in Excused("week14", freed.rules, there)
    assert freed.elsewhere([]) == [] and freed.slips([], tmp_path, tmp_path) == [
        "[excused] in course.toml, week13, speaks of Roe, Max, and several of the roster are called so: name one as "
        "`grade status week13` does"
    ]
    named = rules("eva", ids={"poeeva_9": "eva"})
    assert "poeeva_9" in Excused("week13", named) and Excused("week13", named).elsewhere(["poeeva_9"]) == []


def test_who_is_known_by_another_week_only_is_no_slip(week, tmp_path):
    (tmp_path / "marks" / "week14" / "jonas").mkdir(parents=True)
    (tmp_path / "submitted" / "eva" / "week14").mkdir(parents=True)
    (tmp_path / "submitted" / "eva" / "week14" / "fsdp.py").write_text("x = 1\n")
    freed = Excused("week13", rules("jonas", "eva", "evi"))
    assert freed.elsewhere(["anna"]) == ["jonas", "eva", "evi"]
    assert freed.slips(["anna"], tmp_path / "marks", tmp_path / "submitted") == [
        "[excused] in course.toml, week13, speaks of evi, who is not in the marks or the hand-ins: did you mean eva?"
    ]


def test_page_mail_and_record_say_so_by_a_name_of_the_roster(week, tmp_path):
    """The download had no apostrophe, [excused] and the roster had one: his page showed 78 points."""
    write(tmp_path / "marks", mark("Sean OBrien"))
    write(tmp_path / "marks", mark("anna"))
    (tmp_path / "roster.csv").write_text(WORKSHEET + '"Participant 4",Sean O\'Brien,\n')
    given = rules("Sean O'Brien").model_copy(update={"roster": RosterRules(file=str(tmp_path / "roster.csv"))})
    here = standings(week, tmp_path / "marks", tmp_path, given)
    assert {one.student: one.excused for one in here} == {"Sean OBrien": True, "anna": False}
    assert NOT_COUNTED in here[0].rule and NOT_COUNTED in text(week, here[0])
    (tmp_path / "roster.csv").unlink()
    others = given.model_copy(update={"excused": {"week14": ["anna"]}})
    assert not any(one.excused for one in standings(week, tmp_path / "marks", tmp_path, others)), "it is not read"


def test_a_hand_in_is_excused_by_a_name_of_the_roster(week, tmp_path):
    write(tmp_path / "marks", mark("joinerjonas_4711", unanswered=["13.7"]))
    who(tmp_path, CANVAS)
    named = rules("Joiner, Jonas")
    found = status(week, tmp_path / "none", tmp_path / "marks", tmp_path, named, NOW, tmp_path / "roster.csv")
    assert [(row.student, row.state) for row in found.rows] == [
        ("jane", "missing"),
        ("joinerjonas_4711", "excused"),
        ("max", "missing"),
    ]
    assert list(_cells(found.rows[1]))[-2:] == ["", "excused"] and not [one for one in found.told if "[excused]" in one]


def test_a_table_that_got_the_column_excused_is_compared_all_the_same():
    before = (["student", "total", "open"], {"anna": ("anna", "80")})
    after = (["student", "total", "excused", "open"], {"anna": ("anna", "70")})
    assert changed.told(before, after) == ["Changed since the file that was there: anna 80 -> 70"]
    assert changed.told(before, (["student", "total"], {})) == []

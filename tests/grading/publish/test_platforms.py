"""The table that a platform exported, filled in: each line one person by exact keys, and nothing else changed."""

import pytest

from grading.intake.arrival import Key
from grading.publish.platforms import fill, read_sheet
from grading.register.people import learn
from grading.register.standing import standings
from labkit.errors import LabError
from tests.grading.publish.aclass import CANVAS, LATE, MOODLE, WEEK, a_class, hand_in, hand_points, mark, person
from tests.grading.publish.looking import read_rows

only_canvas = pytest.mark.parametrize("system", ["canvas"], indirect=True)
only_moodle = pytest.mark.parametrize("system", ["moodle"], indirect=True)


@pytest.fixture
def cls(tmp_path, exported):
    """Anna has 90 of 100, Sean 95 with 10 % off, the third nothing."""
    with a_class(tmp_path / "autumn", exported, LATE) as opened:
        one = hand_in(opened, "anna@x.org", mark())
        other = hand_in(opened, "sean@x.org", mark(), days_late=1)
        hand_points(opened, one, "13.7", 10)
        hand_points(opened, other, "13.7", 15)
        yield opened


def filled(cls, text=None, **how):
    path = cls.folder / "roster.csv"
    if text is not None:
        path.write_text(text)
    made = fill(read_sheet(cls, WEEK, path), WEEK, standings(cls, WEEK), cls.folder / "out.csv", **how)
    return made, read_rows(made.path)


def test_totals_stand_beside_the_platforms_own_keys(cls, system):
    made, table = filled(cls)
    assert made.grades == {person(cls, "anna@x.org"): 90, person(cls, "sean@x.org"): 85.5}
    if system == "canvas":
        assert table[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Week 13 (4711)"]
        assert made.column == "Week 13 (4711)" and table[1][-1] == "100" and len(table) == 4
        assert [row[1] for row in table[2:]] == ["101", "102"] and [row[-1] for row in table[2:]] == ["90", "85.5"]
    else:
        assert table[0] == MOODLE.splitlines()[0].split(",")
        assert [row[5] for row in table[1:]] == ["90", "85.5", ""], "an empty cell leaves Moodle's grade as it is"
        assert table[1][8] == "-fine", "what Moodle reads back stays letter by letter"


def test_zeros_are_for_those_whose_deadline_has_passed_and_no_cell_is_a_formula(cls, system):
    _, table = filled(cls, zeros=True)
    third = next(row for row in table if "HYPERLINK" in "".join(row))
    assert third[-1 if system == "canvas" else 5] == "0" and not any(cell.startswith("=") for cell in third)
    rules = LATE + '[extensions."hy@x.org"]\nweek13 = 2999-01-01T00:00:00+00:00\n'
    with a_class(cls.folder, "", rules) as again:
        assert person(again, "hy@x.org") not in filled(again, zeros=True)[0].grades


def test_who_is_excused(cls, system):
    with a_class(cls.folder, "", LATE + '[excused]\nweek13 = ["anna@x.org", "hy@x.org"]\n') as again:
        made, table = filled(again, zeros=True)
    if system == "canvas":
        assert {row[1]: row[-1] for row in table[2:]} == {"101": "EX", "102": "85.5", "103": "EX"}
    else:
        assert [row[5] for row in table[1:]] == ["", "85.5", ""]
        assert any("excused" in sentence and "Anna Müller" in sentence for sentence in made.notes)


def test_who_has_no_total_yet_is_left_out_and_named(cls):
    hand_in(cls, "hy@x.org", mark())
    made, _ = filled(cls, zeros=True)
    assert person(cls, "hy@x.org") not in made.grades
    assert any("to be graded by hand" in sentence and "HYPERLINK" in sentence for sentence in made.notes)


def test_a_name_decides_nothing_and_a_strangers_line_is_named(cls, exported):
    text = exported.replace("101,u101,anna@x.org", "777,u777,other@x.org")
    text = text.replace("Participant 501,Anna Müller,anna@x.org", "Participant 777,Anna Müller,other@x.org")
    made, _ = filled(cls, text)
    assert person(cls, "anna@x.org") not in made.grades
    assert any("nobody" in sentence for sentence in made.notes) and any("not in" in one for one in made.notes)


def test_a_line_that_is_two_peoples_another_assignments_points_and_another_file_are_refused(cls, exported, tmp_path):
    with pytest.raises(LabError):
        filled(cls, exported.replace("sean@x.org", "anna@x.org", 1))
    with pytest.raises(LabError, match="80"):
        filled(cls, exported.replace(",10,100,", ",10,80,").replace("100.00", "80.00"))
    (tmp_path / "ids.csv").write_text("student\nanna\n")
    assert read_sheet(cls, WEEK, tmp_path / "ids.csv") is None


@only_canvas
@pytest.mark.parametrize(
    "titles, assignment, column",
    [
        ("Week 13 (1),Week 13 quiz (2)", None, "Week 13 (1)"),
        ("All-reduce (7)", None, "All-reduce (7)"),
        ("week13: All-reduce (7)", None, "week13: All-reduce (7)"),
        ("Week 130 (7)", None, ""),
        ("Week 13 quiz (7)", None, None),
        ("Mine (3)", "Mine", "Mine (3)"),
        ("Mine (3)", "New one", ""),
        ("Mine (3),Quizzes Current Score", "Quizzes Current Score", ""),
    ],
)
def test_the_column_of_the_week(cls, titles, assignment, column):
    lines = CANVAS.replace("Quiz (12),Week 13 (4711),Final Score", titles).splitlines()
    more = "," * titles.count(",")
    text = "\n".join([lines[0], *(line.rsplit(",", 3)[0] + "," + more for line in lines[1:])]) + "\n"
    if column is None:
        with pytest.raises(LabError, match="--assignment"):
            filled(cls, text)
        return
    made, table = filled(cls, text, assignment=assignment)
    assert made.column == column and any("no column" in one for one in made.notes) == bool(assignment and not column)
    assert table[0][-1] == (column or assignment or "week13: All-reduce")


@only_canvas
def test_split_names_and_a_byte_order_mark(cls):
    text = CANVAS.replace("Student,ID", "LastName,FirstName,ID").replace('"Müller, Anna"', "Müller,Anna")
    text = text.replace('"O\'Brien, Sean"', "O'Brien,Sean").replace('"=HYPERLINK(1)"', "=HYPERLINK(1),")
    text = text.replace('"Student, Test"', "Test,Student").replace("Possible,,,,", "Possible,,,,,")
    made, table = filled(cls, "\ufeff" + text)
    assert table[0][:3] == ["LastName", "FirstName", "ID"] and len(made.grades) == 2
    assert table[2][:3] == ["Müller", "Anna", "101"]


@only_moodle
def test_under_blind_marking_the_number_of_this_assignment_decides(cls):
    learn(cls, person(cls, "anna@x.org"), [Key("moodle", "888", "week13")])
    learn(cls, person(cls, "sean@x.org"), [Key("moodle", "889", "week14")])
    made, table = filled(cls, "Identifier,Status,Grade\nParticipant 888,,\nParticipant 889,,\n")
    assert set(made.grades) == {person(cls, "anna@x.org")} and [row[2] for row in table[1:]] == ["90", ""]


@only_moodle
@pytest.mark.parametrize("number", ["502", "777"])
def test_another_assignments_worksheet_is_refused(cls, number):
    """Numbers differ from assignment to assignment: 502 is Sean's in this one, and stands beside Anna in that."""
    for name, own in (("anna@x.org", "501"), ("sean@x.org", "502")):
        learn(cls, person(cls, name), [Key("moodle", own, "week13")])
    assert len(filled(cls)[0].grades) == 2
    with pytest.raises(LabError, match="this assignment's worksheet"):
        filled(cls, MOODLE.replace("Participant 501", f"Participant {number}", 1))


@only_moodle
def test_a_semicolon_stays_one_and_a_worksheet_may_be_german(cls):
    made, _ = filled(cls, "Identifier;Full name;Email address;Grade\nParticipant 1;Anna;anna@x.org;\n")
    assert made.path.read_text().splitlines()[1] == "Participant 1;Anna;anna@x.org;90"
    text = "ID,Vollständiger Name,E-Mail-Adresse,Bewertung,Bestwertung\nTeilnehmer/in501,Anna,anna@x.org,,100\n"
    made, table = filled(cls, text)
    assert len(made.grades) == 1 and table[1] == ["Teilnehmer/in501", "Anna", "anna@x.org", "90", "100"]

"""Who is in the class, who handed nothing in, and what Moodle and Canvas take back."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from grading import marks
from grading.intake import commands as intake
from grading.intake import roster
from grading.intake.find import find_submissions
from grading.intake.policy import Rules
from grading.reports import canvas, handback, mail, moodle, term
from grading.reports.by_hand import ByHand
from grading.reports.export import table
from grading.reports.feedback import path_of, write_pages
from grading.reports.standing import Standing
from grading.reports.status import show, status, summary
from labkit.errors import LabError
from tests.grading.reports.aclass import mark

CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section
    Points Possible,,,,
"Doe, Jane",4567,u1,jane@uni,Group 1
"Roe, Max",4568,u2,max@uni,Group 1
"""
WORKSHEET = """Identifier,"Full name","Email address",Status,Grade,"Maximum grade","Feedback comments"
"Participant 901","Anna Meier",a@x,Submitted,,100.00,
"Participant 902","Anna Meier",b@x,Submitted,,100.00,
"Participant 903","Олена Шевченко",c@x,"No submission",,100.00,
"""
NOW = datetime(2026, 12, 1, tzinfo=UTC)
RULES = Rules.model_validate(
    {
        "ids": {"doejane_4567": "anna"},
        "deadlines": {"week13": datetime(2026, 11, 20, tzinfo=UTC)},
        "extensions": {"max@uni": {"week13": datetime(2026, 12, 9, tzinfo=UTC)}},
    }
)


def read(tmp_path, text):
    (tmp_path / "roster.csv").write_text(text)
    return roster.read(tmp_path / "roster.csv")


def done(name, points=20):
    return Standing(mark(name), [1], by_hand={"13.7": ByHand("13.7", points)})


def test_canvas_own_test_student_is_nobody(tmp_path):
    """Canvas adds it to the export of a course in which an instructor once opened Student View."""
    there = read(tmp_path, CANVAS + '"Student, Test",9999,,0123abcd,Group 1\n')
    gone = roster.absent("week13", ["anna"], there, RULES, NOW)
    assert [one.student for one in gone] == ["max@uni"] and roster.find("9999", there, RULES)[0] is None


def test_an_id_of_our_own_is_found_by_what_the_platform_calls_it(week, tmp_path):
    """README's own line of [ids] and --roster go together."""
    who = read(tmp_path, CANVAS)
    written = canvas.export(week, [done("anna")], tmp_path / "c.csv", roster=who, rules=RULES)
    assert written.lines == 1 and written.told == []
    assert "4567" in (tmp_path / "c.csv").read_text()


def test_canvas_last_name_first_is_moodles_name(tmp_path):
    """Who was collected from Moodle's downloads alone is found in Canvas' gradebook, unless it may be another."""
    there = read(tmp_path, CANVAS + '"Poe, Edgar",4569,,,Group 1\n"Poe, Edgar",4570,,,Group 1\nPrince,4571,,,Group 1\n')

    def number(student):
        line, why = roster.find(student, there, RULES)
        return line.cells["ID"] if line is not None else why

    assert number("Max Roe") == "4568" and number("Prince") == "4571" and number("anna") == "4567"
    assert number("Jane Doe") == roster.NOT_THERE, "[ids] says that 4567 is anna"
    assert number("Edgar Poe") == "several of the roster are called so"
    assert number("Roe Max") == roster.NOT_THERE and number("") == roster.NOT_THERE
    more = {**RULES.ids, "roe_45680": "another", "Max Roe": "max"}
    found = roster.find("max", there, RULES.model_copy(update={"ids": more}))[0]
    assert found is not None and found.cells["ID"] == "4568", "45680 is another's number, and max is Max Roe"


def test_many_ids_that_are_nobodys_are_told_in_one_line(tmp_path):
    """Moodle's worksheet of one group: all others of [ids] are not in it."""
    there, many = read(tmp_path, CANVAS), {f"x_{n}": f"student {n}" for n in range(12)}
    rules = RULES.model_copy(update={"ids": many})
    (said,) = (line for line in roster.unknown_ids(there, rules) if "[ids]" in line)
    assert said.startswith("[ids] in course.toml speaks of student 0") and "who are not in roster.csv" in said
    few = RULES.model_copy(update={"ids": dict(list(many.items())[:3])})
    assert [line.count("who is not in roster.csv") for line in roster.unknown_ids(there, few)] == [1, 1, 1]


def test_who_handed_nothing_in_is_missing_after_their_own_deadline(week, tmp_path):
    who = read(tmp_path, CANVAS + '"Poe, Eva",4569,,eva@uni,\n')
    gone = roster.absent("week13", ["anna"], who, RULES, NOW)
    assert [(one.student, one.over) for one in gone] == [("eva@uni", True), ("max@uni", False)]
    given = [one for one in gone if one.over]
    written = canvas.export(week, [done("anna")], tmp_path / "c.csv", roster=who, rules=RULES, zeros=given)
    grades = {row[1]: row[-1] for row in csv.reader(io.StringIO((tmp_path / "c.csv").read_text())) if row[1].isdigit()}
    assert written.lines == 2 and grades == {"4567": "100", "4569": "0"}
    head, _, *rows = table(week, [done("anna")], absent=gone, zeros=True)
    assert [(row[0], row[head.index("total")], row[head.index("state")]) for row in rows] == [
        ("eva@uni", 0, "missing"),
        ("max@uni", None, "not handed in yet"),
    ]


def test_moodle_gets_its_worksheet_back_with_grades_and_nothing_else_changed(week, tmp_path):
    """Read as importgradeslib.php does: Identifier finds a participant, an empty Grade is passed over."""
    who = read(tmp_path, WORKSHEET)
    gone = roster.absent("week13", ["Anna Meier_901"], who, Rules(), NOW)
    assert [one.student for one in gone] == ["Anna Meier_902", "Олена Шевченко"]
    written = moodle.export(week, [done("Anna Meier_901", 7)], tmp_path / "m.csv", who, Rules(), zeros=gone[1:])
    rows = list(csv.DictReader(io.StringIO((tmp_path / "m.csv").read_text())))
    assert written.lines == 2 and [row["Grade"] for row in rows] == ["87", "", "0"]
    before = list(csv.DictReader(io.StringIO(WORKSHEET)))
    assert [{**row, "Grade": ""} for row in rows] == before
    written = moodle.export(week, [done("Anna Meier")], tmp_path / "m.csv", who, Rules())
    assert written.lines == 0 and "several of the roster" in written.told[0]
    with pytest.raises(LabError, match="maximum grade in Moodle is 50"):
        moodle.export(week, [], tmp_path / "m.csv", read(tmp_path, WORKSHEET.replace("100.00", "50")), Rules())
    for most in ("50.00", "1000.00", "100.50", "Not satisfactory"):  # the last: of a scale
        other = WORKSHEET.replace("100.00", most).replace("Maximum grade", "Maximum Grade")  # as some versions write it
        with pytest.raises(LabError, match=f"maximum grade in Moodle is {most}"):
            moodle.export(week, [], tmp_path / "m.csv", read(tmp_path, other), Rules())
    for most in ("100", "100.0", '"100,00"'):
        other = WORKSHEET.replace("100.00", most).replace("Maximum grade", "Maximum Grade")
        assert moodle.export(week, [], tmp_path / "m.csv", read(tmp_path, other), Rules()).lines == 0


def test_a_worksheet_of_another_assignment_is_told(week, tmp_path):
    """Moodle's numbers are each assignment's own: week 16's points stood in week 13's worksheet, under its numbers."""
    sheet = tmp_path / "week13.csv"
    sheet.write_text("Identifier,Full name,Grade\nParticipant 501,Anna Meier,\nParticipant 502,Ben Carter,\n")
    here = [Standing(mark(name), [1], by_hand={"13.7": ByHand("13.7", 20)}) for name in ("Anna Meier", "Ben Carter")]

    def told(anna):
        rules = Rules().knowing({"Anna Meier": {1: f"Anna Meier_{anna}"}})
        return moodle.export(week, here, tmp_path / "out.csv", roster.read(sheet), rules).told

    assert told(501) == []
    assert told(701) == [
        f"{sheet} has other numbers than what was collected of week13 (Anna Meier): is it this assignment's worksheet?"
    ]


GROUPS = """Identifier,Full name,Grade
Participant 601,Anna Meier,
Participant 602,Ben Carter,
Participant 616,Nina Doppel,
Participant 617,Olga Muster,
Participant 618,Max Meier,
Participant 619,Max Meier,
"""


@pytest.mark.parametrize(
    "of, found",
    [
        # This assignment's numbers: by number, whatever the group's name does to the student's.
        (["Group A-Olga Muster_617", "Nina Doppel_616"], {"Group A-Olga Muster": "617", "Nina Doppel": "616"}),
        # Another assignment's: 601 is Anna here, who handed in nothing.
        (["Group A-Olga Muster_601", "Nina Doppel_603"], {"Group A-Olga Muster": None, "Nina Doppel": "616"}),
        (["Group A-Olga Muster_601"], {"Group A-Olga Muster": None}),
        # A name that the worksheet does not have, with its number, beside one whose number is wrong; then alone.
        (["Olga M._601", "Nina Doppel_603"], {"Olga M.": None, "Nina Doppel": "616"}),
        (["Olga M._617", "Nina Doppel_616"], {"Olga M.": "617", "Nina Doppel": "616"}),
        (["Participant_602"], {"Participant": "602"}),
        # Since Moodle 4.1 a group has one folder, with the group's number: 601 is Anna's.
        (["Group A_601", "Group B_55"], {"Group A": None, "Group B": None}),
        (["Olga M._617"], {"Olga M.": None}),
        # Two of one name in groups: the number tells, in this assignment's worksheet alone.
        (["Group A-Max Meier_618", "Group B-Max Meier_619"], {"Group A-Max Meier": "618", "Group B-Max Meier": "619"}),
        (["Group A-Max Meier_618", "Nina Doppel_603"], {"Group A-Max Meier": None}),
    ],
)
def test_a_number_of_another_assignment_is_nobodys(tmp_path, of, found):
    """Two students who handed in nothing got a group's points, and its members zeros."""
    who, rules = read(tmp_path, GROUPS), Rules().knowing({one.rpartition("_")[0]: {1: one} for one in of})
    for student, number in found.items():
        line, why = roster.find(student, who, rules)
        assert (line and line.cells["Identifier"].removeprefix("Participant ")) == number
        assert bool(why) == (number is None)


def test_two_of_one_name_are_found_by_the_number_of_either_week(tmp_path):
    """[roster] is one week's worksheet, and [ids] has a line for each week. Moodle gives no number twice."""
    text = "Identifier,Full name,Grade\nParticipant 501,Max Meier,\nParticipant 502,Max Meier,\nParticipant 503,Lea,\n"
    who = read(tmp_path, text)
    ids = {"Max Meier_501": "Max A", "Max Meier_502": "Max B", "Max Meier_701": "Max A", "Max Meier_702": "Max B"}
    rules = Rules(ids=ids).knowing({"Max A": {1: "Max Meier_701"}, "Max B": {1: "Max Meier_702"}})
    found = {name: roster.find(name, who, rules)[0] for name in ("Max A", "Max B")}
    assert {name: line.cells["Identifier"] for name, line in found.items()} == {
        "Max A": "Participant 501",
        "Max B": "Participant 502",
    }
    assert [one.student for one in roster.absent("week14", ["Max A", "Max B"], who, rules, NOW)] == ["Lea"]
    assert roster.unknown_ids(who, rules) == []


def test_a_groups_folder_is_nobodys_and_the_way_to_its_members_is_told(tmp_path):
    text = "Identifier,Full name,Group,Grade\n" + "".join(
        f"Participant {number},{name},{group},\n"
        for number, name, group in (
            (77, "Anna Meier", "Team_1: ..blue"),
            (78, "Ben Carter", "Team_1: ..blue"),
            (79, "Cem", "Cem"),
            (80, "Dora", ""),
        )
    )
    who = read(tmp_path, text)
    of = {"Team 1 blue": {1: "Team 1 blue_77"}, "Cem": {1: "Cem_79"}, "Anna Meier": {1: "Anna Meier_77"}}
    rules = Rules().knowing(of)
    assert roster.find("Team 1 blue", who, rules) == (None, roster.A_GROUP), "77 is Anna's, as others' numbers show"
    assert roster.find("Cem", who, rules)[0].cells["Identifier"] == "Participant 79", (
        "a person, and so is the group called"
    )
    assert [line.name for line in roster.members("Team 1 blue", who)] == ["Anna Meier", "Ben Carter"]
    assert roster.members("Team", who) == roster.members("", who) == roster.members("Cem", who) == []
    (one,) = roster.outside(["Team 2"], who, Rules().knowing({"Team 2": {1: "Team 2_80"}}))
    assert one.endswith("of a group of Moodle's the worksheet does, as --roster of `grade collect`")
    assert roster.outside(["Team 2"], who, Rules())[0].endswith(": [ids] in course.toml says who it is")
    (told,) = roster.outside(of, who, rules)
    assert told.startswith("Team 1 blue handed in and is a group of the roster: `grade withdraw` takes it back")
    assert f"`grade collect` with --roster {who.path} gives it to each member" in told
    blind = read(tmp_path, "Identifier,Group,Grade\nParticipant 77,,\n")
    assert roster.find("Anna Meier", blind, rules)[0].cells["Identifier"] == "Participant 77", "no name is there"


def test_a_group_that_the_worksheet_names_otherwise_is_nobodys(tmp_path):
    """Two of one name, in two groups, and a worksheet in which their numbers are exchanged."""
    text = (
        "Identifier,Full name,Group,Grade\nParticipant 618,Max Meier,Group {},\nParticipant 619,Max Meier,Group {},\n"
    )
    of = ["Group A-Max Meier_618", "Group B-Max Meier_619"]
    rules = Rules().knowing({one.rpartition("_")[0]: {1: one} for one in of})
    for groups, found in (("AB", ["618", "619"]), ("BA", [None, None])):
        who = read(tmp_path, text.format(*groups))
        lines = [roster.find(one.rpartition("_")[0], who, rules)[0] for one in of]
        assert [line and line.cells["Identifier"].removeprefix("Participant ") for line in lines] == found


def test_a_worksheet_of_blind_marking_has_no_names(week, tmp_path):
    text = "Identifier,Status,Grade,Maximum grade\nParticipant 501,Submitted,,100\nParticipant 502,,,100\n"
    who, rules = read(tmp_path, text), Rules().knowing({"Participant": {1: "Participant_501"}})
    gone = roster.absent("week13", ["Participant"], who, rules, NOW)
    assert [str(one) for one in gone] == ["Participant_502"]
    written = moodle.export(week, [done("Participant", 7)], tmp_path / "m.csv", who, rules, zeros=gone)
    assert written.lines == 2 and "Participant 501,Submitted,87,100" in (tmp_path / "m.csv").read_text()


def test_the_term_knows_a_student_by_the_rosters_line(week, tmp_path):
    """What a platform calls them may differ from week to week, and nobody is there twice."""
    who, later = read(tmp_path, CANVAS), replace(week, name="week14")
    parts = [
        term.Part(week, [done("doejane_4567", 20)], roster.absent("week13", ["doejane_4567"], who, RULES, NOW)),
        term.Part(later, [done("anna", 10), done("eva", 5)], roster.absent("week14", ["anna"], who, RULES, NOW)),
    ]
    head, *rows = term.table(parts, who, RULES, zeros=True).rows
    cells = [[row[head.index(name)] for name in ("student", "ID", "total", "open")] for row in rows]
    assert cells == [
        ["anna", "4567", 190, ""],
        ["eva", "", None, "week13 missing"],
        ["max@uni", "4568", None, "week13 not handed in yet; week14 not handed in yet"],
    ]
    assert [row[head.index("Name")] for row in rows] == ["Doe, Jane", "", "Roe, Max"], "eva is not in it"
    twice = [term.Part(week, [done("anna"), done("doejane_4567")])]
    (row, _) = term.table(twice, who, RULES).rows[1:]
    assert row[head.index("ID")] == "4567" and row[-1] == "week13 is there under two names"


def test_two_of_one_name_in_the_term_are_two(week, tmp_path):
    who = read(tmp_path, WORKSHEET)
    rules = Rules(deadlines={"week13": datetime(2026, 11, 20, tzinfo=UTC)})
    gone = roster.absent("week13", ["Anna Meier_901"], who, rules, NOW)
    made = term.table([term.Part(week, [done("Anna Meier_901", 7)], gone)], who, rules, zeros=True)
    head, *rows = made.rows
    assert [[row[head.index(name)] for name in ("Full name", "Identifier", "total")] for row in rows] == [
        ["Anna Meier", "Participant 901", 87],
        ["Anna Meier", "Participant 902", 0],
        ["Олена Шевченко", "Participant 903", 0],
    ]
    assert made.open == 0


def test_an_id_of_the_rules_that_is_nobody_s_is_told_with_the_one_that_was_meant(tmp_path):
    who = read(tmp_path, "anna\nbert\n")
    rules = Rules(ids={"doejane_4567": "anan", "roemax_4568": "bert", "Jane Doe": "anan"})
    assert roster.unknown_ids(who, rules) == [
        "[ids] in course.toml speaks of anan, who is not in roster.csv: did you mean anna?"
    ]
    # A platform's own roster has no ids of ours: it is searched by what the platform calls them.
    assert roster.unknown_ids(read(tmp_path, CANVAS), Rules(ids={"doejane_4567": "anna", "poeeva_9": "eva"})) == [
        "[ids] in course.toml speaks of eva, who is not in roster.csv"
    ]


def test_who_has_left_is_no_slip_of_ids(tmp_path):
    """It was told by every command until the end of the term."""
    there, ids = read(tmp_path, CANVAS), {**RULES.ids, "x": "lea", "max2@uni": "max@un"}
    rules = RULES.model_copy(update={"ids": ids, "extensions": {}})
    told = roster.unknown_ids(there, rules, lambda: ["lea", "max@un", "anna"])
    assert told == ["[ids] in course.toml speaks of max@un, who is not in roster.csv: did you mean max@uni?"]
    assert any("lea" in line for line in roster.unknown_ids(there, rules)), "nothing of hers is here"


def test_who_was_collected_before_ids_spoke_of_them_is_the_same_student(week, tmp_path):
    who = read(tmp_path, "anna\nbert\n")
    due = datetime(2026, 12, 9, tzinfo=UTC)
    rules = RULES.model_copy(update={"extensions": {"anna": {"week13": due}}})
    assert rules.due("doejane_4567", "week13") == rules.due("anna", "week13") == due
    assert roster.find("doejane_4567", who, rules)[0] is who.lines[0]
    assert [one.student for one in roster.absent("week13", ["doejane_4567"], who, rules, NOW)] == ["bert"]


def test_the_list_of_ids_and_what_is_no_roster(tmp_path):
    assert [line.names[0] for line in read(tmp_path, "anna\nben\n").lines] == ["anna", "ben"]
    assert [line.names[0] for line in read(tmp_path, "student,name\nanna,A\n").lines] == ["anna"]
    with pytest.raises(LabError, match="no roster"):
        read(tmp_path, "name,points\nx,1\n")


MOODLE_DOWNLOAD = ("Anna Meier_901_assignsubmission_file/lab.ipynb", "Bo Li_904_assignsubmission_file_/ring.py")
CANVAS_DOWNLOAD = ("doejane_4567_88_collectives.py", "doejane_4567_91_lab.ipynb", "roemax_LATE_4568_93_lab-2.ipynb")


def download(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return path


def packed(week, tmp_path, names, students, rules=RULES, groups=None):
    here = [done(student) for student in students]
    list(write_pages(week, here, tmp_path / "feedback", lambda standing: {}))
    like = [download(tmp_path / "download.zip", names)]
    found = handback.pack(week, here, tmp_path / "feedback", like, tmp_path / "up.zip", rules, groups or {})
    with zipfile.ZipFile(tmp_path / "up.zip") as archive:
        return found, {name: archive.read(name) for name in archive.namelist()}


def as_moodle(name):
    """(participant, plugin, the file's name) by the rules of is_valid_filename_for_import."""
    parts = name.split("/")
    while parts:
        info = parts.pop(0).split("_", 4)
        if len(info) >= 4 and info[1].isdigit():
            return int(info[1]), "_".join(info[2:4]), "/".join([*info[4:], *parts]).strip("/")
    return None


def as_canvas(name):
    """(user, attachment): the first two numbers between underscores, as infer_comment_context_from_filename."""
    return tuple(int(part) for part in name.split("/")[-1].split("_") if part.isdigit())[:2]


def test_moodle_finds_every_student_of_the_packed_feedback(week, tmp_path):
    found, files = packed(week, tmp_path, MOODLE_DOWNLOAD, ["Anna Meier", "Bo Li", "nobody"])
    assert {as_moodle(name) for name in files} == {
        (901, "assignsubmission_file", "week13.html"),
        (904, "assignsubmission_file", "week13.html"),
    }
    for name, data in files.items():
        assert data == path_of(tmp_path / "feedback", week, name.split("_")[0]).read_bytes()
    assert found.system == "Moodle" and found.told == ["nobody is not in the download"]


def test_a_moodle_before_4_1_finds_them_by_the_names_it_gave(week, tmp_path):
    """Its is_valid_filename_for_import wants five parts between underscores, the last of which may be empty."""
    _, files = packed(week, tmp_path, MOODLE_DOWNLOAD, ["Bo Li"])
    assert list(files) == ["Bo Li_904_assignsubmission_file_/week13.html"]
    flat = "Bo Li_904_assignsubmission_file_lab.ipynb"
    _, files = packed(week, tmp_path, [flat], ["Bo Li"])
    assert list(files) == ["Bo Li_904_assignsubmission_file_week13.html"]
    assert all(len(name.split("/")[0].split("_", 4)) == 5 for name in files) and as_moodle(*files)[0] == 904


def test_a_groups_page_goes_to_each_member_under_their_own_number(week, tmp_path):
    """In the group's folder it would go to whoever has the group's number as a participant."""
    numbers = {"Anna Meier": "Anna Meier_901", "Bo Li": "Bo Li_77", "Cem {C}": "Cem {C}_905", "Eve": "Eve_906"}
    rules = Rules().knowing({name: {1: "Bo_1" if name == "Bo Li" else one, 2: one} for name, one in numbers.items()})
    names = [f"{name}_assignsubmission_file/lab.ipynb" for name in ("Group {A}_77", "Default group", "Eve_906")]
    groups = {"Anna Meier": "Group {A}_77", "Bo Li": "Group {A}_77", "Cem {C}": "Default group", "Zoe": "Group B_78"}
    groups |= {"Eve": "Group B_78", "Kim": "Default group"}  # Eve handed it in alone, later; of Kim no number is known
    found, files = packed(week, tmp_path, names, [*numbers, "Zoe", "Kim"], rules, groups)
    assert {as_moodle(name)[0]: name.partition("_")[0] for name in files} == {
        901: "Anna Meier",
        77: "Bo Li",
        905: "Cem {C}",
        906: "Eve",
    }
    for name, data in files.items():
        assert data == path_of(tmp_path / "feedback", week, name.partition("_")[0]).read_bytes()
    assert found.told == ["Zoe is not in the download", "Kim is not in the download"]
    flat = ["Group {A}_77_assignsubmission_file_lab.ipynb"]
    assert list(packed(week, tmp_path, flat, ["Bo Li"], rules, groups)[1]) == [
        "Bo Li_77_assignsubmission_file_week13.html"
    ]


def test_canvas_finds_every_student_of_the_packed_feedback(week, tmp_path):
    found, files = packed(week, tmp_path, CANVAS_DOWNLOAD, ["anna", "roemax_4568"])
    assert {as_canvas(name) for name in files} == {(4567, 91), (4568, 93)}
    assert found.system == "Canvas" and found.told == [] and found.students == ["anna", "roemax_4568"]


def test_what_is_no_download_is_refused(week, tmp_path):
    with pytest.raises(LabError, match="nothing in it is named"):
        packed(week, tmp_path, ["lab.ipynb"], ["anna"])


def test_the_mails_text_says_what_the_page_says(week):
    wrong = Standing(
        mark("anna", "13.2 off-by-one chunk"), [1], by_hand={"13.7": ByHand("13.7", 12, comments=["Good."])}
    )
    text = mail.text(week, wrong)
    assert f"{wrong.total:g} of 100 points" in text and "13.2" in text and "A person wrote:\n    Good." in text
    assert "`lab check 13.2" in text and all(
        len(line) <= 72 for line in text.split("\n") if not line.startswith("    ")
    )


def test_a_mail_keeps_items_in_lines_and_tells_what_was_not_handed_in(week):
    said = "Say for each prediction what came instead, and why, in one sentence."
    items = f"predictions 1 to 7: 3 of 5\n    {said}\nthree clocks: 4 of 8"
    given = Standing(mark("anna"), [1], by_hand={"13.7": ByHand("13.7", 7, comments=[items])})
    text = mail.text(week, given)
    said = text.partition("A person wrote:\n")[2].split("\n")
    assert said[:4] == [
        "    predictions 1 to 7: 3 of 5",
        "        Say for each prediction what came instead, and why, in one",
        "        sentence.",
        "    three clocks: 4 of 8",
    ]
    assert "a person gave 7 of 20; read the comment below." in " ".join(text.split())
    text = mail.text(week, Standing(mark("empty", unanswered=["13.7"]), [1]))
    title = week.task("13.7").title
    assert f"13.7 0 of 20 {title}: nothing handed in" in " ".join(text.split())
    assert f"1. Task 13.7, {title}: nothing was handed in, and 20 of 20 points are open." in " ".join(text.split())


def test_one_table_tells_what_has_come_is_graded_waits_is_late_is_missing(week, tmp_path):
    for student in ("anna", "ben", "cleo"):
        (tmp_path / "submitted" / student / "week13").mkdir(parents=True)
        (tmp_path / "submitted" / student / "week13" / "collectives.py").write_text("x = 1\n")
    stamp = tmp_path / "submitted" / "cleo" / "week13" / "timestamp.txt"
    stamp.write_text("2026-11-21 10:00:00 UTC")
    marks.write(tmp_path / "marks", mark("anna", received="2026-11-19T10:00:00+00:00", unanswered=["13.7"]))
    marks.write(tmp_path / "marks", mark("ben", received="2026-11-21T10:00:00+00:00"))
    (tmp_path / "who.csv").write_text("anna\nben\ncleo\ndora\nmax@uni\n")
    found = status(week, tmp_path / "submitted", tmp_path / "marks", tmp_path, RULES, NOW, tmp_path / "who.csv")
    assert [(row.student, row.state, row.late) for row in found.rows] == [
        ("anna", "complete", False),
        ("ben", "to be graded by hand", True),
        ("cleo", "not graded yet", True),
        ("dora", "missing", False),
        ("max@uni", "not handed in yet", False),
    ]
    assert summary(found) == (
        "week13: 3 handed in, 2 graded, 1 wait for a person, 2 late, 1 missing, 1 not handed in yet"
    )


def test_a_late_mark_without_a_time_is_told_at_each_step(week, tmp_path, capsys):
    """Canvas writes LATE into a name, and not by how much."""
    from grading.intake.collect import collect
    from grading.run import _untimed

    names = ("doejane_LATE_4567_88_collectives.py", "roemax_4568_93_collectives.py")
    like = download(tmp_path / "d.zip", names)
    report = collect([like], week, tmp_path / "submitted", RULES)
    intake._table(Console(width=200), report, week, RULES)
    assert "1 attempt marked late by the platform, which tells no time: anna." in capsys.readouterr().out
    found = status(week, tmp_path / "submitted", tmp_path / "marks", tmp_path, RULES, NOW)
    assert "1 student is marked late by the platform, which tells no time (anna)" in found.told[0]
    show(found, Console(width=200))
    assert "marked late" in capsys.readouterr().out.split("roemax")[0]
    (tmp_path / "raw").mkdir()
    for name in names:
        (tmp_path / "raw" / name).write_text("x = 1\n")
    assert "in time here: doejane_4567." in _untimed(find_submissions(tmp_path / "raw", week))[0]
    assert _untimed(find_submissions(tmp_path / "submitted", week)) == []


def test_a_week_of_which_nothing_was_collected_yet_has_no_students_of_another(week, tmp_path):
    from grading.intake.collect import collect
    from labkit.checks.tasks import find_weeks

    (tmp_path / "in" / "anna").mkdir(parents=True)
    (tmp_path / "in" / "anna" / "collectives.py").write_text("x = 1\n")
    collect([tmp_path / "in"], week, tmp_path / "submitted", Rules())
    for one in find_weeks():
        found = status(one, tmp_path / "submitted", tmp_path / "marks", tmp_path, Rules(), NOW)
        assert [row.student for row in found.rows] == (["anna"] if one.name == "week13" else [])

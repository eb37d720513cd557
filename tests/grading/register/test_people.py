"""Who somebody is: keys decide, names propose, and course.toml opens only against the roster."""

import tempfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grading.intake.arrival import Key
from grading.intake.names import forms, in_moodles_files, letters
from grading.register.classes import init_class, open_class
from grading.register.deadlines import is_excused
from grading.register.people import everybody, key_of, owner, propose, resolve, who
from grading.register.problems import UNKNOWN, problems
from grading.register.standing import MISSING, standings
from grading.register.submissions import attempt, withdraw
from labkit.errors import LabError
from tests.grading.register.storing import AFTER, CANVAS, DEADLINE, DUE, WEEK, WEEKS, canvas, hand_in, moodle, opened

MOODLE = """Identifier,Full name,Email address,Status
Participant 501,Sean O'Brien,sean@x.org,Submitted
Participant 502,Max Meier,max1@x.org,Submitted
Participant 503,Max Meier,max2@x.org,Submitted
"""
NAMES = "Identifier,Full name\nParticipant 501,Sean O'Brien\nParticipant 502,Zoë Åberg\n"


def unknown(cls):
    return [one for one in problems(cls, WEEK) if one.kind == UNKNOWN]


# -- the roster -------------------------------------------------------------------------------------------------------
def test_a_person_is_found_by_every_key_and_by_the_whole_name(tmp_path):
    with opened(tmp_path / "c") as cls:
        anna = everybody(cls)[1]
        for text in ("4501", "S001", "anna@x.org", "Anna@X.org", "Müller, Anna", "Anna Müller", "Mu\u0308ller, Anna"):
            assert resolve(cls, text) == anna
        assert key_of(cls, anna) == "anna@x.org"
        for text in ("Muller, Anna", "anna", "Müller", ""):
            with pytest.raises(LabError, match="nobody in the class"):
                resolve(cls, text)


def test_several_of_one_name_are_nobody_until_a_key_tells(tmp_path):
    with opened(tmp_path / "c", MOODLE) as cls:
        with pytest.raises(LabError, match=r"2 of the class .* max1@x\.org .* max2@x\.org"):
            resolve(cls, "Max Meier")
        assert (
            resolve(cls, "max2@x.org").name == "Max Meier"
            and propose(cls, "Max Meier") is propose(cls, "Max Meier_40231") is None
        )
        assert {one.called for one in everybody(cls)} == {
            "Max Meier (max1@x.org)",
            "Max Meier (max2@x.org)",
            "Sean O'Brien",
        }


def test_a_newer_roster_says_who_is_new_and_who_left(tmp_path):
    folder = tmp_path / "c"
    with opened(folder):
        pass
    newer = tmp_path / "newer.csv"
    newer.write_text(CANVAS.replace('"Doe, Jane",4503,S003,jane', '"New, Nia",4504,S004,nia').replace("Anna", "Anne"))
    made = init_class(folder, newer, "", WEEKS)
    assert [one.name for one in made.new] == ["New, Nia"] and [one.name for one in made.left] == ["Doe, Jane"]
    with opened(folder) as cls:
        assert [one.name for one in everybody(cls)] == ["Müller, Anne", "New, Nia", "O'Brien, Sean"]
        assert resolve(cls, "jane@x.org").left_at is not None
        assert [one.person.name for one in standings(cls, WEEK)] == ["Müller, Anne", "New, Nia", "O'Brien, Sean"]
        hand_in(cls, "doejane", canvas("doejane", "9"))
        assert [one.command for one in unknown(cls)] == ["grade who doejane = jane@x.org"]
    back = init_class(folder, tmp_path / "c-roster.csv", "", WEEKS)
    assert back.stay == 3 and [one.name for one in back.left] == ["New, Nia"]
    assert [one.name for one in back.back] == ["Doe, Jane"]
    newer.write_text("Student,ID,SIS User ID\nAnna,4501,S002\n")
    with pytest.raises(LabError, match="the keys of Anna are those of"):
        init_class(folder, newer, "", WEEKS)


@pytest.mark.parametrize(
    "text, words",
    [
        ("student,name\na,Anna\na,Ben\n", "'a' is Anna and Ben"),
        ("Identifier,Full name\nParticipant 1,Max Meier\nParticipant 2,Max Meier\n", "'Max Meier' is"),
        ("student,email\na,x@y\nb,X@Y\n", "x@y"),
        ("Identifier,Status\nParticipant 1,Submitted\n", "blind"),
    ],
)
def test_a_roster_that_does_not_tell_people_apart_is_refused(tmp_path, text, words):
    with pytest.raises(LabError, match=f"(?i){words}"), opened(tmp_path / "c", text):
        pass
    assert not (tmp_path / "c" / "class.db").exists(), "nothing is left that looks like a class"


# -- course.toml against the roster -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["anna@x.org", "4501", "Anna Müller", "Mu\u0308ller, Anna"])
def test_every_name_of_one_person_extends_and_excuses_the_same_one(tmp_path, name):
    """Whatever they are called by: for lateness, for zeros, and for an excuse."""
    rules = f'{DEADLINE}[extensions."{name}"]\nweek13 = {AFTER.isoformat()}\n[excused]\nweek14 = ["{name}"]\n'
    with opened(tmp_path / "c", rules=rules) as cls:
        hand_in(cls, "mülleranna_4501", canvas("mülleranna", "4501"), received=AFTER)
        jane, anna, sean = standings(cls, WEEK, now=AFTER)
        assert anna.due == AFTER and jane.due == sean.due == DUE
        assert anna.factor == 1 and not anna.late and jane.state == MISSING
        assert [is_excused(cls, one.person.id, "week14") for one in (jane, anna, sean)] == [False, True, False]


@pytest.mark.parametrize(
    "rules, right, roster",
    [
        (f'[extensions."Sean OBrien"]\nweek13 = {AFTER.isoformat()}\n', '[extensions."sean@x.org"]', CANVAS),
        ('[excused]\nweek13 = ["Sean OBrien"]\n', '[excused] week13 = ["sean@x.org"]', CANVAS),
        ('[excused]\nweek13 = ["S0033"]\n', '[excused] week13 = ["jane@x.org"]', CANVAS),
        ('[excused]\nweek13 = ["S001", "S0033"]\n', '[excused] week13 = ["S001", "jane@x.org"]', CANVAS),
        ('[excused]\nweek13 = ["nobody at all"]\n', '[excused] week13 = ["E-MAIL OR ID"]', CANVAS),
        ('[excused]\nweek13 = ["Max Meier"]\n', "name one of max1@x.org", MOODLE),
        ("[extensions.S001]\nweek13 = 2026-11-01T12:00:00Z\n", "is before the deadline", CANVAS),
        ("[extensions.S001]\nweek13 = 2026-12-01T12:00:00\n", "needs its offset from UTC", CANVAS),
        ('[excused]\nweek133 = ["S001"]\n', "there is no week 'week133'; did you mean 'week13'", CANVAS),
        ('[full_points]\nweek13 = ["13.99"]\n', "week13 has no task '13.99' with points", CANVAS),
        ("[extensions.Sean OBrien]\n", 'needs quotes: [extensions."Sean OBrien"]', CANVAS),
    ],
)
def test_what_cannot_be_meant_opens_no_class_and_the_refusal_has_the_right_line(tmp_path, rules, right, roster):
    with opened(tmp_path / "c", roster):
        pass
    (tmp_path / "c" / "course.toml").write_text(DEADLINE + rules)
    with pytest.raises(LabError) as refused, open_class(tmp_path / "c", WEEKS):
        pass
    assert right in str(refused.value)


def test_a_time_without_its_offset_is_in_the_classs_zone(tmp_path):
    rules = 'zone = "Europe/Berlin"\n[deadlines]\nweek13 = 2026-10-24T23:59:00\nweek14 = 2026-10-25T23:59:00\n'
    with opened(tmp_path / "c", rules=rules) as cls:
        offsets = [time.utcoffset().total_seconds() / 3600 for time in cls.rules.deadlines.values()]
    assert offsets == [2, 1]


# -- submissions ------------------------------------------------------------------------------------------------------
def test_where_names_are_all_there_is_another_spelling_is_nobody_until_it_is_said(tmp_path):
    """An extension of Sean O'Brien, and Moodle's file says Sean OBrien: nothing leaves before somebody has said so."""
    rules = f'{DEADLINE}[late]\nper_day = 0.1\n[extensions."Sean O\'Brien"]\nweek13 = {AFTER.isoformat()}\n'
    with opened(tmp_path / "c", NAMES, rules) as cls:
        number = hand_in(cls, "Sean OBrien", moodle("Sean OBrien", "7", week="week13"), received=AFTER).id
        (one,) = unknown(cls)
        assert one.blocks and one.command == "grade who 'Sean OBrien' = 'Sean O'\"'\"'Brien'"
        (sean,) = who(cls, "Sean OBrien", ["Sean O'Brien"])
        assert attempt(cls, number).members == (sean.id,) and not unknown(cls)
        (standing,) = [each for each in standings(cls, WEEK) if each.person == sean]
        assert standing.factor == 1 and not standing.late
        later = hand_in(cls, "Sean OBrien", moodle("Sean OBrien", "1234", week="week14"), b"other")
        assert [one.id for one in later.members] == [sean.id], "the name has been said to be his"
        exact = hand_in(cls, "Zoë Åberg", [Key("name", "Zoe\u0308 A\u030aberg")], b"hers")
        assert [one.name for one in exact.members] == ["Zoë Åberg"]


def test_a_name_never_decides_where_there_are_keys(tmp_path):
    with opened(tmp_path / "c", MOODLE) as cls:
        added = hand_in(cls, "Sean OBrien", moodle("Sean OBrien", "501"))
        assert not added.members and propose(cls, "Sean OBrien").email == "sean@x.org"
        exact = hand_in(cls, "Sean O'Brien", [Key("name", "Sean O'Brien")], b"else")
        assert not exact.members, "not even the whole name"
        assert len(unknown(cls)) == 2
        again = hand_in(cls, "Sean OBrien", moodle("Sean OBrien", "501", "SEAN@x.org"))
        assert again.id == added.id and not again.new and [one.email for one in again.members] == ["sean@x.org"]
        found, why = owner(cls, [Key("email", "sean@x.org"), Key("id", "max1@x.org")])
        assert found is None and "several" in why, "keys of two people name neither"


def test_a_name_of_canvas_beside_anothers_number_is_a_groups_until_it_is_said(tmp_path):
    """Canvas' download calls a group's files by its name and one member's number."""
    with opened(tmp_path / "c", rules=DEADLINE) as cls:
        for name in ("annamüller", "mülleranna"):
            assert hand_in(cls, name, canvas(name, "4501"), name.encode()).members, "another order of her own name"
        team, file = canvas("team1", "4501"), Key("canvas", "900", "week13")
        first = hand_in(cls, "team1_4501", [*team, file])
        (said,) = (one for one in problems(cls, WEEK) if one.blocks)
        assert not first.members and "Müller, Anna may be meant" in said.sentence and "a group" in said.sentence
        with pytest.raises(LabError, match="Müller, Anna's"):
            who(cls, "team1_4501", ["S002"])
        both = who(cls, "team1_4501", ["S001", "S002"])
        assert owner(cls, [file])[0] == both[0].id, "Canvas takes the pages back by the number of this file"
        other = [hand_in(cls, f"team1_450{n}", canvas("team1", f"450{n}"), b"other", AFTER) for n in (2, 3)]
        assert [one.members for one in other] == [both, []], "another member's number, and a stranger's"
        withdraw(cls, [one.id for one in other])
        newer = Key("canvas", "901", "week13")
        again, known = (
            hand_in(cls, "team1_4501", keys, text, AFTER)
            for keys, text in (([*team, newer], b"again"), (team, b"work"))
        )
        assert owner(cls, [newer])[0] == both[0].id, "and by the number of the newest one"
        assert again.members == both == known.members and len(attempt(cls, first.id).members) == 2
        assert not [one for one in problems(cls, WEEK) if one.blocks]
        hand_in(cls, "doe_4503", canvas("smithjane", "4503"))
        assert [one.name for one in who(cls, "doe_4503", ["S003"])] == ["Doe, Jane"]
        assert hand_in(cls, "doe_4503", canvas("smithjane", "4503"), b"later").members, "a new name, said once"


def test_who_can_be_said_again_and_says_nothing_against_the_roster(tmp_path):
    with opened(tmp_path / "c") as cls:
        number = hand_in(cls, "Sam", [Key("name", "Sam")]).id
        who(cls, "Sam", ["sean@x.org"])
        (jane,) = who(cls, "Sam", ["jane@x.org"])
        assert attempt(cls, number).members == (jane.id,)
        assert [one.id for one in hand_in(cls, "Sam", [Key("name", "Sam")], b"later").members] == [jane.id]
        hand_in(cls, "mülleranna", canvas("mülleranna", "4501"), b"hers")
        with pytest.raises(LabError, match="a key that the roster has"):
            who(cls, "mülleranna", ["jane@x.org"])
        with pytest.raises(LabError, match="no submission is called"):
            who(cls, "Samm", ["jane@x.org"])
        roster = tmp_path / "two.csv"
        roster.write_text("student,name\na1,Sam\na2,Sam\n")
        init_class(cls.folder, roster, "", WEEKS)
        assert not hand_in(cls, "Sam", [Key("name", "Sam")], b"third").members, "two are called so now"


# -- names that strangers chose ---------------------------------------------------------------------------------------
SIGNS = "'\u2019-. ,_\u0301\u093f\u0e35\xf6\xd6\xdf\ufb01\u0130\u0131\xd8"  # dropped, joined, folded, or of two forms
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from(SIGNS), min_size=1, max_size=12)
NAME = TEXT.map(lambda text: unicodedata.normalize("NFC", text).strip()).filter(
    lambda text: letters(text) and not set('"@') & set(text)
)


def class_of(scratch, head, lines):
    return opened(Path(scratch) / "c", "\n".join([head, *lines]) + "\n")


@settings(max_examples=60)
@given(names=st.lists(NAME, min_size=2, max_size=5, unique=True), data=st.data())
def test_names_propose_and_keys_decide_whatever_the_names_are(names, data):
    lines = [f'{n},"{name}",s{n}@x.org' for n, name in enumerate(names)]
    with tempfile.TemporaryDirectory() as scratch, class_of(scratch, "student,name,email", lines) as cls:
        people = {one.email: one for one in everybody(cls)}
        assert len(people) == len(names)
        chosen = data.draw(st.integers(0, len(names) - 1))
        name, email = names[chosen], f"s{chosen}@x.org"
        for mangled in (name, in_moodles_files(name), name.upper(), unicodedata.normalize("NFD", name)):
            assert owner(cls, [Key("name", mangled)])[0] is None
            same = [n for n, other in enumerate(names) if letters(mangled) in forms(other)]
            if same:  # who alone has these letters
                assert propose(cls, mangled) == (people[f"s{same[0]}@x.org"] if len(same) == 1 else None)
        found, _ = owner(cls, [Key("name", data.draw(NAME)), Key("email", email.upper())])
        assert found == people[email].id
        assert resolve(cls, email) == people[email] == resolve(cls, str(chosen))

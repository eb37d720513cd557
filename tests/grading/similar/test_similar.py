"""Honest variants are left in peace, copies are found, and what was handed out is no evidence."""

import io
import re
from itertools import combinations

import pytest
from rich.console import Console

from grading.intake.submission import Submission
from grading.run import reference_submission
from grading.similar import compare, page
from grading.similar import search as searching
from labkit.checks import load_week
from labkit.checks.tasks import find_weeks
from tests.grading.publish.aclass import WEEK as PUBLISHED_WEEK
from tests.grading.publish.aclass import a_class, hand_in
from tests.grading.similar.variants import DISGUISES, MANY, ROOT, WEEK, renamed, student

pytest.importorskip("copydetect", reason="copydetect is not installed")


@pytest.fixture(scope="module")
def week():
    return load_week(WEEK)


def compared(week, files_of, ours=None):
    made = [
        compare.Source(Submission.of(name, files), number=number)
        for name, attempts in files_of.items()
        for number, files in enumerate(attempts if isinstance(attempts, list) else [attempts], 1)
    ]
    return compare.compare(week, made, ours=ours)


def solutions(week):
    """The course's own, as a submission and as a student's files."""
    ours = reference_submission(week)
    return ours, {path.partition("/")[2]: data for path, data in ours.files.items() if path.endswith(".py")}


@pytest.mark.thorough
def test_the_bounds_stand_between_honest_work_and_copies(week):
    """What SHARE and ONE in grading/similar/compare.py stand on: `pytest -s` prints it."""
    labels = {}
    handed_out = compare.given(week, labels)

    def alike(all_files):
        named = (Submission.of(f"student {n}", files) for n, files in enumerate(all_files))
        works = [compare.read(week, compare.Source(one), labels) for one in named]
        compare.without(works, handed_out)
        return [compare.alike(*pair) for pair in combinations(works, 2)]

    shifts = [[student(n, shift) for n in range(MANY)] for shift in range(MANY)]
    honest = [pair for whole in shifts for pair in alike(whole)]  # two of one shift have no variant in common
    print(f"{len(honest)} honest pairs: share {max(pair.share for pair in honest):.2f} at most")
    assert max(pair.share for pair in honest) < compare.SHARE / 2 and max(pair.one for pair in honest) < compare.ONE
    for name, disguise in DISGUISES.items():
        least = min(pair.share for whole in shifts for one in whole for pair in alike([one, disguise(one)]))
        print(f"copies, {name}: share {least:.2f} at least")
        assert least > (1 + compare.SHARE) / 2


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_copy_among_honest_work_is_the_only_pair(week, disguise):
    files = {f"s{n}": student(n) for n in range(MANY)}
    files["copy"] = DISGUISES[disguise](student(2))
    pairs, works, unread = compared(week, files, ours=reference_submission(week))
    assert [{pair.first.student, pair.second.student} for pair in pairs] == [{"s2", "copy"}]
    assert len(works) == MANY + 1 and not unread, "the course's own solutions are no submission"


def search(cls, **how):
    """What the command finds: (names of each pair, the page)."""
    out = io.StringIO()
    to = searching.search(cls, PUBLISHED_WEEK, how.get("earlier", ()), Console(file=out, width=200))
    found = re.findall(r"(?m)^(.*) and (.*): \d+%", out.getvalue())
    return found, to.read_text()


def test_the_command_reads_every_attempt_and_a_groups_members_are_no_pair(tmp_path):
    with a_class(tmp_path / "autumn", ["anna", "ben", "cem", "dora"]) as cls:
        hand_in(cls, ["anna", "ben"], files=student(2))
        hand_in(cls, "anna", files=student(2), days_late=1)
        hand_in(cls, ["cem", "dora"], files=renamed(student(2)))
        hand_in(cls, ["cem", "dora"], files=student(4), days_late=1)
        pairs, text = search(cls)
    assert sorted(pairs) == [("anna", "cem & dora, submission 3"), ("anna & ben", "cem & dora, submission 3")]
    assert "cem &amp; dora, submission 3" in text


def test_an_earlier_class_is_compared_with_this_one_and_not_with_itself_and_two_have_one_name(tmp_path):
    roster = "student,name\nu1,Max Meier\nu2,Max Meier\n"
    with a_class(tmp_path / "autumn25", ["max", "moritz"]) as cls:
        hand_in(cls, "max", files=student(3))
        hand_in(cls, "moritz", files=student(3))
    with a_class(tmp_path / "autumn26", roster) as cls:
        hand_in(cls, "u1", files=student(0))
        hand_in(cls, "u2", files=renamed(student(0)))
        pairs, _ = search(cls, earlier=[tmp_path / "autumn25"])
        assert pairs == [("Max Meier (u1)", "Max Meier (u2)")]
        hand_in(cls, "u1", files=renamed(student(3)), days_late=1)
        pairs, _ = search(cls, earlier=[tmp_path / "autumn25"])
    assert ("Max Meier (u1), submission 3", "max (autumn25)") in pairs


def test_a_habit_is_counted_over_students(week, monkeypatch):
    monkeypatch.setattr(compare, "FEW", 1)
    monkeypatch.setattr(compare, "COMMON", 0.5)
    files = {"anna": [student(n) for n in (0, 1, 3, 4, 2)], "ben": student(2), "cleo": student(2)}
    assert compared(week, files)[0] == [], "all three of three have it, and no more than half of seven attempts"


def test_an_attempt_that_cannot_be_read_is_reported_where_no_other_can(week):
    broken = {"collectives.py": b"def ring_all_gather(:\n"}
    _, works, unread = compared(week, {"anna": [student(0), student(0), broken], "ben": [broken, broken]})
    assert [work.name for work in works] == ["anna"] and unread == ["ben"], "equal attempts are one"


def test_one_function_that_was_copied_alone_is_found(week):
    files = {f"s{n}": student(n) for n in (1, 3)}
    files["thief"] = {**student(4), "collectives.py": renamed(student(1))["collectives.py"]}
    (pair,) = compared(week, files)[0]
    assert {pair.first.student, pair.second.student} == {"s1", "thief"} and pair.share < compare.SHARE
    assert pair.functions[0][0] == "collectives.ring_reduce_scatter"


def test_the_most_alike_is_no_function_of_one_line(week):
    """Two people write one line alike; where a pair is read, it begins with what was copied."""
    line = b"    return float(nbytes) / max(float(seconds), 1e-9) + abs(float(nbytes)) * 0\n"
    mine = student(0)
    text = mine["timing.py"]
    begin = text.index(b"\n", text.index(b'bandwidth in bytes a second."')) + 1
    mine["timing.py"] = text[:begin] + line + text[text.index(b"\n\n", begin) + 1 :]
    (pair,) = compared(week, {"anna": mine, "ben": DISGUISES["renamed and padded"](mine)})[0]
    shares = {name: share for name, share, _, _ in pair.functions}
    assert shares["timing.algbw"] == 1 > shares[pair.functions[0][0]] and pair.functions[0][0] != "timing.algbw"


@pytest.mark.parametrize("many", [1, 8])
def test_who_has_the_solutions_is_paired_with_them_also_where_half_of_the_class_has_them(week, many):
    ours, own = solutions(week)
    files = {f"has{n}": own for n in range(many)} | {f"honest{n}": student(n) for n in range(4)}
    pairs, _, _ = compared(week, files, ours=ours)
    found = {(pair.first.student, pair.second.student) for pair in pairs}
    assert found == {("the reference", f"has{n}") for n in range(many)}


@pytest.mark.thorough
def test_what_was_handed_out_and_what_many_have_is_no_evidence(week):
    from grading.intake.released import released_week

    blank = {path: released_week(week).files[path] for path in released_week(week).modules.values()}
    assert compared(week, {"anna": blank, "ben": blank})[0] == []
    many = {f"s{n}": student(0) for n in range(40)}
    assert compared(week, many)[0] == [], "forty who write alike were taught so"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        "def ring_all_gather(:\n",
        "x = " + "(" * 50_000 + ")" * 50_000,
        "x = " + "-" * 300_000 + "1",
        "def ring_all_gather(s, g):\n" + "".join(" " * (n + 1) + "if 1:\n" for n in range(99)) + " " * 100 + "pass\n",
        "\0",
        "é" * 1000,
    ],
)
def test_what_no_parser_can_read_is_reported_and_stops_nothing(week, text):
    files = {"odd": {"collectives.py": text.encode()}, "a": student(0), "b": renamed(student(0))}
    pairs, _, unread = compared(week, files)
    assert [{pair.first.student, pair.second.student} for pair in pairs] == [{"a", "b"}] and set(unread) <= {"odd"}


def test_the_page_shows_both_sides_and_nothing_of_theirs_is_active(week, tmp_path):
    from tests.grading.publish.looking import assert_one_harmless_file, words

    wicked = student(0)
    wicked["timing.py"] = wicked["timing.py"].replace(b"    bad = 0\n", b"    bad = 0  # <script>alert(1)</script>\n")
    pairs, works, unread = compared(week, {"<b>anna": wicked, "ben": renamed(student(0))})
    text = page.write(week, pairs, len(works), unread, tmp_path / "p.html").read_text()
    assert_one_harmless_file(text)
    assert "<mark>" in text and "&lt;b&gt;anna" in text and "timing.time_collective" in words(text)


def test_every_week_has_functions_that_are_compared():
    for one in find_weeks(ROOT):
        ours, files = solutions(one)
        pairs, works, unread = compared(one, {"anna": files}, ours=ours)
        assert not unread and [pair.second.student for pair in pairs] == ["anna"], one.name
        graded = {name for task in one.tasks if task.kind == "auto" for name in task.functions}
        assert set(works[0].prints) <= graded and len(works[0].prints) >= len(graded) / 2, one.name

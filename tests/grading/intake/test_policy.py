"""Which attempt counts, and what lateness costs: every rule of course.toml, and every mistake in it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from grading.intake.policy import Final, Rules, final, find_rules, load_rules
from grading.marks import Mark
from labkit.checks.tasks import find_weeks
from labkit.errors import LabError

DUE = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)
COURSE = """
[attempts]
policy = "{policy}"
[deadlines]
week91 = 2026-11-20T23:00:00Z
[late]
grace_minutes = 10
per_day = 0.1
most = 0.25
closes_after_days = 5
[extensions."J\u00fcrg, o'X"]
week91 = 2026-11-22T23:00:00Z
[ids]
"doe_45" = "anna"
"""


@pytest.fixture
def rules(tmp_path, week):
    def make(policy="best", text=COURSE):
        (tmp_path / "course.toml").write_text(text.replace("{policy}", policy), encoding="utf-8")
        return load_rules(tmp_path / "course.toml", [week])

    return make


def mark(attempt=1, points=10.0, after=None, student="anna", **more):
    """A mark of an attempt handed in so long after the deadline (None: unknown)."""
    return Mark(
        student,
        "week91",
        attempt,
        points=points,
        received=(DUE + after).isoformat() if after is not None else "",
        **more,
    )


def hours(number):
    return timedelta(hours=number)


@pytest.mark.parametrize(
    "after, factor, words",
    [
        (hours(-1), 1, ""),
        (hours(0), 1, ""),
        (timedelta(minutes=10), 1, ""),
        (None, 1, ""),
        (
            timedelta(minutes=10, seconds=1),
            0.9,
            "1 day late (each day begun counts): 10 % of the points are taken off.",
        ),
        (hours(24), 0.9, "1 day late"),
        (hours(24.1), 0.8, "2 days late (each day begun counts): 20 %"),
        (hours(49), 0.75, "3 days late (each day begun counts): 25 %"),
        (hours(120), 0.75, "5 days late"),
        (hours(120.1), 0, "6 days late: after 5 days nothing counts any more."),
    ],
)
def test_lateness(rules, after, factor, words):
    result = final([mark(after=after)], rules())
    assert result.factor == factor and words in result.sentence and bool(words) == bool(result.sentence)


def test_an_extension_moves_one_students_deadline(rules):
    late = hours(47)
    composed, apart = "J\u00fcrg, o'X", "Ju\u0308rg, o'X"
    assert final([mark(after=late, student=composed)], rules()) == Final(mark(after=late, student=composed), 1.0, "")
    assert final([mark(after=late, student=apart)], rules()).factor == 1
    assert final([mark(after=hours(49), student=composed)], rules()).factor == 0.9
    assert final([mark(after=late)], rules()).factor == 0.8


def test_a_received_time_in_another_zone_is_the_same_moment(rules):
    one = mark()
    one.received = "2026-11-21T04:30:00+05:30"  # exactly the deadline, in India
    assert final([one], rules()).factor == 1
    one.received = "2026-11-20T23:30:00-01:00"  # half past midnight UTC
    assert final([one], rules()).factor == 0.9


@pytest.mark.parametrize("policy, chosen", [("best", 2), ("last", 3)])
def test_best_and_last(rules, policy, chosen):
    result = final([mark(1, 5), mark(2, 9), mark(3, 7)], rules(policy))
    assert result.mark.attempt == chosen and result.factor == 1
    assert result.sentence == (
        "Attempt 2 of 3 counts, with most automatic points." if chosen == 2 else "Attempt 3 of 3 counts, the last."
    )


def test_no_attempt_is_the_third_of_two(rules):
    """The second was withdrawn."""
    assert final([mark(1, 5), mark(3, 7)], rules("last")).sentence == "Attempt 3 counts, the last of 2."
    assert final([mark(1, 9), mark(3, 7)], rules("best")).sentence.startswith("Attempt 1 of 2 counts")


def test_best_is_after_what_lateness_costs(rules):
    early, late = mark(1, 9, hours(-5)), mark(2, 9.5, hours(5))
    assert final([early, late], rules()).mark is early  # 9.5 x 0.9 = 8.55
    better = mark(2, 10.1, hours(5))
    result = final([early, better], rules())
    assert result.mark is better and result.factor == 0.9
    assert result.sentence.startswith("Attempt 2 of 2 counts, with most automatic points after what lateness costs. H")
    assert final([early, better], rules("last")).factor == 0.9


def test_of_equals_the_later_counts_unless_lateness_costs(rules):
    assert final([mark(1, 7), mark(2, 7)], rules()).mark.attempt == 2
    assert final([mark(1, 0, hours(-1)), mark(2, 0, hours(5))], rules()).mark.attempt == 1


def test_the_last_is_no_attempt_that_counts_nothing(rules):
    """A file sent long after the deadline must not take away what was earned in time."""
    first, second, far = mark(1, 9, hours(-5)), mark(2, 8, hours(5)), mark(3, 10, hours(200))
    result = final([first, second, far], rules("last"))
    assert result.mark is second and result.factor == 0.9
    assert result.sentence.startswith(
        "Attempt 2 of 3 counts, the last that lateness leaves points. Handed in 1 day late"
    )
    assert final([far], rules("last")).mark is far and final([far], rules("last")).factor == 0
    farther = mark(4, 10, hours(300))
    assert final([far, farther], rules("last")).mark is farther, "of nothing but nothing it is the last"


def test_last_is_by_time_where_it_is_known(rules):
    """An older attempt may be collected later."""
    first, second = mark(1, 5, hours(-1)), mark(2, 5, hours(-3))
    told = "Attempt 1 of 2 counts, handed in last, at 2026-11-20 22:00+00:00."
    for order in ([first, second], [second, first]):
        assert final(order, rules("last")).mark is first and final(order, rules("last")).sentence == told
    second.received = ""
    assert final([second, first], rules("last")).mark is second
    for no_moment in ("soon", "2026-11-20T10:00:00"):
        second.received = no_moment
        assert final([first, second], rules("last")).mark is second


def test_an_attempt_that_was_not_graded_to_its_end_is_told(rules):
    result = final([mark(1, 5), mark(2, 3, complete=False)], rules())
    assert result.mark.attempt == 1
    assert "Attempt 2 could not be graded to its end, so this may change." in result.sentence


def test_marks_of_two_students_are_refused(rules):
    for marks in ([mark(), mark(student="bob")], []):
        with pytest.raises(ValueError, match="not the marks of one student"):
            final(marks, rules())


def test_without_a_file_the_last_counts_in_full(tmp_path, week, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_rules(None, [week]) == Rules()
    assert final([mark(1, 9), mark(2, 5, hours(999))], Rules()) == Final(
        mark(2, 5, hours(999)), 1.0, "Attempt 2 of 2 counts, the last."
    )
    (tmp_path / "course.toml").write_text('[attempts]\npolicy = "best"\n')
    assert find_rules(None, [week]).attempts.policy == "best"
    with pytest.raises(LabError, match="no config file"):
        find_rules(tmp_path / "other.toml", [week])


def test_deadlines_without_a_price_cost_nothing(rules):
    result = final([mark(after=hours(99))], rules(text="[deadlines]\nweek91 = 2026-11-20T23:00:00Z\n"))
    assert result.factor == 1 and "0 % of the points" in result.sentence


def test_ids(rules):
    assert rules().id_of("doe_45") == "anna" and rules().id_of("Ju\u0308rg") == "J\u00fcrg"


def test_a_name_that_two_have_is_nobodys(rules):
    """Moodle tells two of one name apart by a number: a stranger was offered, to `grade withdraw` too."""
    ids = rules(text='[ids]\n"Max Meier_501" = "max.one"\n"Max Meier_502" = "max.two"\n')
    with pytest.raises(LabError, match=re.escape("name one of max.one (Max Meier_501), max.two (Max Meier_502)")):
        ids.among("Max Meier", ["anna", "max.one", "max.two"])
    with pytest.raises(LabError, match=re.escape("2 students here are called 'Max Meier': name one of Max Meier_7, m")):
        ids.among("Max Meier", ["Max Meier_7", "max.one"])
    assert ids.among("Max Meier", ["anna", "max.two"]) == "max.two", "the only one who is here"
    assert ids.among("Max Meier_502", ["max.one", "max.two"]) == "max.two"
    for nobody in ("Max", "Meier", "Max Meier_", "Max Meier_50", "max meier", "M.*"):
        assert ids.among(nobody, ["max.one", "max.two"]) == nobody
    assert ids.among("Max Meier", ["Max Meier_x1", "Max Meier_7 b"]) == "Max Meier"
    assert ids.among("Seán O'Brien", ["anna", "Seán OBrien"]) == "Seán OBrien", "as Moodle names files"
    assert ids.among("Seán O'Brien", ["Se\u0061\u0301n OBrien", "Seán O Brien"]) == "Se\u0061\u0301n OBrien"
    assert ids.among("O'Brien", ["OBrien", "O:Brien"]) == "O'Brien", "nobody knows which"


DUE_91 = "[deadlines]\nweek91 = 2026-11-20T23:00:00Z\n"


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("[attempt]\npolicy = 'best'", "'attempt' is not a known key; did you mean 'attempts'"),
        ("[late]\nperday = 0.1", "in [late], 'perday' is not a known key; did you mean 'per_day'"),
        ("[attempts]\npolicy = 'first'", "in [attempts], policy must be one of 'best' or 'last', not 'first'"),
        ("[late]\nper_day = 10", "in [late], per_day must be at most 1.0, not 10"),
        ("[late]\nmost = 'half'", "in [late], most must be a number, not 'half'"),
        (
            "[deadlines]\nweek19 = 2026-11-20T23:00:00Z",
            "in [deadlines], there is no week 'week19'; did you mean 'week91'",
        ),
        (
            "[deadlines]\nweek91 = 2026-11-20T23:00:00",
            "the deadline of week91 needs its offset from UTC, as in 2026-11-",
        ),
        ("[deadlines]\nweek91 = 2026-11-20", "week91"),
        ("[deadlines]\nweek91 = '2026-11-20T23:00:00Z'", "week91"),
        (f"{DUE_91}[extensions.anna]\nweek91 = 2026-11-19T23:00:00Z", "is before the deadline"),
        (f"{DUE_91}[extensions.anna]\nweek91 = 2026-11-21T23:00:00", "needs its offset"),
        ("[extensions.anna]\nweek91 = 2026-11-19T23:00:00Z", "extends nothing: [deadlines] has no week91"),
        ("[ids]\na = ''", "is empty"),
        ("late = 3", "late must be a table"),
        ("[late", "is not valid TOML"),
    ],
)
def test_mistakes_are_told(rules, text, sentence):
    with pytest.raises(LabError) as error:
        rules(text=text)
    assert sentence in str(error.value) and "course.toml" in str(error.value)


@pytest.mark.parametrize(
    "text, told",
    [
        ("[extensions.Eva Li]\nweek13 = 1", 'a space say, needs quotes: [extensions."Eva Li"]'),
        ("[extensions.Müller]  # ill\nweek13 = 1", 'needs quotes: [extensions."Müller"]'),
        ("[deadlines]\nweek13 = 2026-10-20", "with its offset from UTC: week13 = 2026-11-20T23:59:00+01:00"),
        ("[deadlines]\nweek13 = 2026-10-20 12:00", "with its offset from UTC: week13 = 2026-11-20T23:59:00+01:00"),
    ],
)
def test_what_toml_refuses_is_shown_as_it_is_written(rules, text, told):
    with pytest.raises(LabError, match=re.escape(told)):
        rules(text=text)


def test_another_slip_gets_no_advice_that_is_not_its_own(rules):
    with pytest.raises(LabError) as refused:
        rules(text="[attempts\npolicy = 'last'")
    assert "needs quotes" not in str(refused.value) and "offset" not in str(refused.value)


def test_a_cancelled_task_does_not_choose_the_attempt(rules):
    """All have its points: who lost them in the better attempt must not fall back to a worse one."""

    def two(attempt, cancelled, other):
        made = mark(attempt, cancelled + other)
        made.tasks = [
            {"id": "91.1", "kind": "auto", "points": cancelled},
            {"id": "91.3", "kind": "auto", "points": other},
        ]
        return made

    first, second = two(1, 6, 1), two(2, 0, 3)
    cancelled = rules().model_copy(update={"full_points": {"week91": ["91.1"]}})
    assert final([first, second], rules()).mark is first and final([first, second], cancelled).mark is second


@pytest.mark.parametrize(
    "line, said",
    [
        ('week31 = ["anna"]', "in [excused], there is no week 'week31'"),
        ('week13 = "anna"', "in [excused], week13 must be a list"),
        ("week13 = [13]", "in [excused"),
    ],
)
def test_excused_of_what_is_not_there_is_refused(tmp_path, line, said):
    (tmp_path / "course.toml").write_text(f"[excused]\n{line}\n")
    with pytest.raises(LabError, match=re.escape(said)):
        load_rules(tmp_path / "course.toml", find_weeks())


def test_an_excused_students_extension_keeps_nothing_closed():
    def closes(*names):
        rules = Rules(
            deadlines={"week13": datetime(2026, 11, 20, tzinfo=UTC)},
            extensions={"doejane_4567": {"week13": datetime(2026, 12, 20, tzinfo=UTC)}},
            ids={"doejane_4567": "Zoë"},
            excused={"week13": list(names)},
        )
        return rules.closes("week13")

    assert closes("anna") == (datetime(2026, 12, 20, tzinfo=UTC), "doejane_4567")
    assert closes("Zoe\u0308") == (datetime(2026, 11, 20, tzinfo=UTC), ""), "by any name, in any form of its letters"


@pytest.mark.parametrize(
    "line, said",
    [
        ('week13 = ["13.44"]', "week13 has no task '13.44' with points"),
        ('week13 = ["13.8"]', "week13 has no task '13.8' with points"),  # a stretch task
        ('week31 = ["13.4"]', "in [full_points], there is no week 'week31'"),
        ('week13 = "13.4"', "full_points"),
    ],
)
def test_full_points_of_what_is_not_there_are_refused(tmp_path, line, said):
    (tmp_path / "course.toml").write_text(f"[full_points]\n{line}\n")
    with pytest.raises(LabError, match=re.escape(said)):
        load_rules(tmp_path / "course.toml", find_weeks())

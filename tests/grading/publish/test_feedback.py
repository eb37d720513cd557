"""A student's page says what the mark says, of this student alone, and nothing active gets in."""

import re

import pytest

from grading.publish.feedback import feedback as written
from grading.publish.feedback import what_next
from grading.publish.overview import overview
from grading.register.marks import HandMark
from labkit.checks.verdict import FAULT
from tests.grading.publish.aclass import RECORDED, WEEK, hand, spoil, stand
from tests.grading.publish.looking import Tags, assert_one_harmless_file, words


def standing(*mutants, **fields):
    return stand("anna", *mutants, **fields)


def feedback(one, **how):
    return written(WEEK, one, {id: given.comment for id, given in one.by_hand.items() if given.comment}, **how)


def test_every_page_is_one_harmless_file_without_the_seed_a_hash_or_another_student(klass):
    pages = {one.person.name: feedback(one) for one in klass}
    for student, page in pages.items():
        assert_one_harmless_file(page)
        assert "20261121" not in page and "seed" not in words(page).lower()
        assert not any(other in page for other in pages if other.startswith("student") and other != student)
    page = feedback(standing(key="k" * 64, tests="t" * 64, environment="e" * 64, attention=["look at bert"]))
    assert not any(secret in page for secret in ("kkkk", "tttt", "eeee", "5d5d5d", "bert"))
    assert "submission 17" in words(page)


def test_points_task_by_task_and_the_diagnosis_word_for_word():
    made = standing("13.2 off-by-one chunk", "13.5 GB/s")
    seen = words(feedback(made))
    assert " ".join(RECORDED["mutants"]["13.2 off-by-one chunk"][0]["text"].split()) in seen
    assert "in GB/s, expected bytes/s" in seen
    for task in made.tasks[:6]:
        assert f"{task['points']} of {task['possible']}" in seen, task["id"]


def test_a_mistake_is_grouped_with_all_its_behaviours_and_points():
    page = feedback(standing("13.2 deadlock order"))
    cases = RECORDED["mutants"]["13.2 deadlock order"]
    assert sum(case["verdict"] == "hung" for case in cases) > 5 and page.count('<span class="word">hung</span>') == 1
    assert page.count("All of them send first") == 1
    behaviours = {c["test"]: c["behaviour"] for t in RECORDED["reference"] for c in t["cases"]}
    assert all(behaviours[case["test"]] in words(page) for case in cases)
    made = standing("13.2 built-in collective")
    total = sum(float(n) for n in re.findall(r'<p class="small">([\d.]+) points?', feedback(made)))
    assert total == pytest.approx(15 - made.points(made.tasks[1]), abs=0.02), "rounded shares add up"


def test_a_task_is_partly_right_only_where_something_passed():
    made = standing()
    for verdicts, word in ((("passed", "wrong"), "partly"), (("forbidden", "crashed"), "failed"), ((), "not run")):
        task = made.tasks[2]
        task["cases"] = [
            {**case, "verdict": verdict} for case, verdict in zip(RECORDED["reference"][2]["cases"], verdicts)
        ]
        assert f">{word}<" in feedback(made)


def test_what_strangers_write_is_text():
    evil = "<script>alert(1)</script><img src=x onerror=y>\x1b[31m\u202e"
    made = stand("<b>" + evil, by_hand=hand("13.7", 15, "<i>well</i>\nsecond line"))
    spoil(made.mark, "test_reduce_scatter[even", "wrong", f"text {evil}", f"printed {evil}", (f"cause {evil}",))
    made.mark.notes = [f"note {evil}"]
    page = feedback(made)
    assert_one_harmless_file(page)
    assert not {"script", "b", "i"} & {tag for tag, a in Tags(page).found if not (tag == "i" and a.get("style"))}
    assert "\x1b" not in page and "\u202e" not in page
    for what in ("text", "printed", "note"):
        assert f"{what} <script>alert(1)</script>" in words(page).replace(" >", ">")
    assert "<i>well</i> second line" in words(page) and "Comment by a person" in words(page)


def test_no_flood_fills_the_page():
    made = standing()
    spoil(made.mark, "test_algbw", "wrong", "no", printed="peeked\n" + "y" * 50_000)
    spoil(made.mark, "test_busbw", "crashed", "z" * 1_000_000, cause=("z" * 1_000_000,))
    made.mark.notes = ["n" * 1_000_000]
    page = feedback(made)
    assert "peeked" in page and page.count("y" * 1000) == 1 and len(page) < 40_000
    assert "Your code printed" not in feedback(made, printed=False)


@pytest.mark.parametrize("whole", [False, True])
def test_incomplete_says_a_human_will_look_and_is_no_zero(whole):
    made = standing(complete=False)
    spoil(made.mark, "test_algbw", FAULT, "the check itself failed, tell the course: OSError")
    if whole:
        made.mark.points = 0
        made.mark.tasks = [t | {"cases": [], "points": 0 if t["kind"] == "auto" else None} for t in made.tasks]
    seen = words(feedback(made))
    assert "a human will look" in seen.lower() and "not a zero" in seen and "Total" not in seen
    assert "OSError" not in seen, "the grader's own troubles are the instructor's"
    assert f"At least {0 if whole else made.automatic} of 80" in seen
    assert "are open" not in seen and "Every automatic point" not in seen


def test_hand_points_complete_the_total_and_the_late_rule_is_shown():
    rule = "Handed in 3 hours late: 10 % less."
    made = standing("13.5 GB/s", by_hand=hand("13.7", 15, "good"), factor=0.9, rule=rule)
    seen = words(feedback(made))
    assert f"Total {0.9 * (made.mark.points + 15):g} of 100 points" in seen and "15 of 20 by hand" in seen
    assert rule in seen and "graded by a person" not in seen


def test_a_mark_that_a_person_overruled_says_so():
    made = standing("13.5 GB/s", by_hand=hand("13.5", 10))
    seen = words(feedback(made))
    assert "decided by a person; the checks gave" in seen and "10 of 10" in seen
    assert made.in_place[0] in seen and "by the checks" not in seen.partition("What to do next")[0]
    assert made.automatic == 80 and not any("13.5" in sentence for sentence in what_next(WEEK, made)[:-1])
    # Fewer points than by the checks, in a task that passes: there is no diagnosis to read.
    said = what_next(WEEK, standing(by_hand=hand("13.4", 9, "copied")))
    assert "Task 13.4, ring all-reduce: a person gave 9 of 20; read the comment below." in said
    assert not any("diagnos" in one or "Every automatic point" in one or "lab check" in one for one in said)


def test_who_is_excused_has_no_total_no_advice_and_no_place_in_the_class():
    made = standing("13.5 GB/s", by_hand=hand("13.7", 12))
    made.excused = True
    assert what_next(WEEK, made) == [] and overview(WEEK, [made]).standings == []
    seen = words(feedback(made))
    assert "Excused" in seen and "Total" not in seen and "What to do next" not in seen


def test_points_by_hand_that_are_looked_at_again_are_not_final():
    made = standing(by_hand={"13.7": HandMark("13.7", 12, content="of other files")})
    said = "Task 13.7: a person looks again at the points given by hand, which may change."
    assert what_next(WEEK, made)[-1] == said and "So far" in words(feedback(made))


def test_what_to_do_next_names_tasks_in_order_and_the_command():
    said = what_next(WEEK, standing("13.4 copy instead of in place", blank=("13.2", "13.3")))
    assert said[0] == "Task 13.2, ring reduce-scatter, is still blank: 15 of 15 points."
    assert said[2].startswith("Task 13.4, ring all-reduce: ") and said[2].endswith(
        "one mistake explains all of them: x is untouched: the result, which came back, is in other memory."
    )
    assert said[3].startswith("`lab check 13.2 13.3 13.4` ")
    first = what_next(WEEK, standing())[0]
    assert "Every automatic point is yours." in first and "13.8" in first

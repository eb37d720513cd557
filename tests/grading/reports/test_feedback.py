"""A student's page says what the mark says, of this student alone, and nothing active gets in."""

from __future__ import annotations

import re

import pytest

from grading.marks import UNSANDBOXED, write
from grading.reports.by_hand import ByHand
from grading.reports.feedback import feedback, path_of, what_next, write_pages
from grading.reports.pictures import own_pictures
from grading.reports.standing import Standing, standings
from labkit.checks.verdict import FAULT
from tests.grading.reports.aclass import AWKWARD, RECORDED, mark, spoil
from tests.grading.reports.looking import Tags, assert_one_harmless_file, words
from tests.grading.reports.pngs import png


def stand(*mutants, **fields):
    more = {key: fields.pop(key) for key in ("by_hand", "factor", "rule") if key in fields}
    made = mark("anna", *mutants, **fields)
    return Standing(made, [made.attempt], **more)


def test_every_page_of_the_class_is_one_harmless_file(week, klass):
    for standing in klass:
        assert_one_harmless_file(feedback(week, standing))


def test_points_task_by_task_and_the_diagnosis_word_for_word(week):
    page = feedback(week, stand("13.2 off-by-one chunk", "13.5 GB/s"))
    seen = words(page)
    failed = [*RECORDED["mutants"]["13.2 off-by-one chunk"], *RECORDED["mutants"]["13.5 GB/s"]]
    assert " ".join(failed[0]["text"].split()) in seen
    assert "chunk r+1 without rank r+1's numbers: which chunk is complete here?" in seen
    assert "in GB/s, expected bytes/s" in seen
    made = stand("13.2 off-by-one chunk", "13.5 GB/s")
    for task in made.mark.tasks[:6]:
        assert f"{task['points']} of {task['possible']}" in seen, task["id"]
    assert f"{made.mark.points} of 80 points by the checks, 20 more are given by hand" in seen
    assert "\u2013 of 20" in seen and "not graded yet" in seen


def test_a_mistake_is_told_once_with_all_its_behaviours_and_points(week):
    page = feedback(week, stand("13.2 deadlock order"))
    cases = RECORDED["mutants"]["13.2 deadlock order"]
    hung = [case for case in cases if case["verdict"] == "hung"]
    assert len(hung) > 5 and page.count('<span class="word">hung</span>') == 1
    assert page.count("All of them send first") == 1
    behaviours = {c["test"]: c["behaviour"] for t in RECORDED["reference"] for c in t["cases"]}
    seen = words(page)
    assert all(behaviours[case["test"]] in seen for case in cases)


@pytest.mark.parametrize(
    "verdicts, word",
    [
        (("passed", "wrong"), "partly"),
        (("forbidden", "crashed"), "failed"),
        (("crashed", "crashed"), "crashed"),
        (("passed", "passed"), "passed"),
        ((), "not run"),
    ],
)
def test_a_task_is_partly_right_only_where_something_passed(week, verdicts, word):
    made = stand()
    task = made.mark.tasks[2]
    task["cases"] = [{**case, "verdict": verdict} for case, verdict in zip(task["cases"], verdicts)]
    page = feedback(week, made)
    assert f">{word}<" in page and (">partly<" in page) == (word == "partly")


def test_rounded_shares_add_up(week):
    made = stand("13.2 built-in collective")
    total = sum(float(n) for n in re.findall(r'<p class="small">([\d.]+) points?', feedback(week, made)))
    assert total == pytest.approx(15 - made.points(made.mark.tasks[1]), abs=0.02)


def test_no_seed_no_hash_of_the_tests_and_no_other_student(week, klass, tmp_path):
    pages = {s.student: feedback(week, s) for s in klass}
    others = [s.student for s in klass if s.student.startswith("student")]
    for student, page in pages.items():
        assert "20261121" not in page and "seed" not in words(page).lower()
        for other in others:
            assert other == student or other not in page
    made = stand(key="k" * 64, tests="t" * 64, environment="e" * 64, attention=["look at anna's colleague bert"])
    page = feedback(week, made)
    assert not any(secret in page for secret in ("kkkk", "tttt", "eeee", "bert"))
    assert "5d5d5d5d5d5d" in page and "5d" * 7 not in page


def test_what_strangers_write_is_text(week):
    evil = "<script>alert(1)</script><img src=x onerror=y>\x1b[31m\u202e"
    given = ByHand("13.7", 15, comments=["<i>well</i>\nsecond line"])
    made = Standing(mark("<b>" + evil), [1], by_hand={"13.7": given})
    spoil(made.mark, "test_reduce_scatter[even", "wrong", f"text {evil}", f"printed {evil}", (f"cause {evil}",))
    made.mark.notes = [f"note {evil}"]
    page = feedback(week, made)
    assert_one_harmless_file(page)
    assert not {"script", "b", "i"} & {tag for tag, a in Tags(page).found if not (tag == "i" and a.get("style"))}
    assert "\x1b" not in page and "\u202e" not in page
    for what in ("text", "printed", "note"):
        assert f"{what} <script>alert(1)</script>" in words(page).replace(" >", ">")
    assert "<i>well</i> second line" in words(page) and "Comment by a person" in words(page)


def test_what_was_printed_is_capped_and_can_be_left_out(week):
    made = stand()
    spoil(made.mark, "test_algbw", "wrong", "no", printed="peeked\n" + "y" * 50_000)
    page = feedback(week, made)
    assert "peeked" in page and page.count("y" * 1000) == 1 and len(page) < 30_000
    page = feedback(week, made, printed=False)
    assert "peeked" not in page and "yyyy" not in page and "Your code printed" not in page


def test_a_flood_of_text_does_not_flood_the_page(week):
    made = stand()
    spoil(made.mark, "test_algbw", "crashed", "z" * 1_000_000, cause=("z" * 1_000_000,))
    made.mark.notes = ["n" * 1_000_000]
    assert len(feedback(week, made)) < 40_000


def test_incomplete_says_a_human_will_look_and_is_no_zero(week):
    made = stand(complete=False)
    spoil(made.mark, "test_algbw", FAULT, "the check itself failed, tell the course: OSError")
    seen = words(feedback(week, made))
    assert "a human will look" in seen.lower() and "not a zero" in seen
    assert "At least 79.5 of 80 points" in seen and "at least 9.5 of 10" in seen
    assert "OSError" not in seen, "the grader's own troubles are the instructor's"
    assert "The grader could not judge 1 behaviour here: Algorithm bandwidth" in seen
    assert "Total" not in seen


def test_a_mark_that_failed_as_a_whole_promises_nothing(week):
    made = stand(complete=False)
    made.mark.tasks, made.mark.points = (
        [t | {"cases": [], "points": 0 if t["kind"] == "auto" else None} for t in made.mark.tasks],
        0,
    )
    seen = words(feedback(week, made))
    assert "At least 0 of 80" in seen and seen.lower().count("a human will look") >= 2
    assert "are open" not in seen and "Every automatic point" not in seen


def test_unsandboxed_is_said(week):
    assert "UNSANDBOXED" in feedback(week, stand(isolation=UNSANDBOXED))
    assert "UNSANDBOXED" not in feedback(week, stand())


def test_hand_points_complete_the_total_and_the_late_rule_is_told(week):
    made = stand(
        "13.5 GB/s",
        by_hand={"13.7": ByHand("13.7", 15, comments=["good"])},
        factor=0.9,
        rule="Handed in 3 hours late: 10 % less.",
    )
    seen = words(feedback(week, made))
    assert f"Total {0.9 * (made.mark.points + 15):g} of 100 points" in seen and "15 of 20 by hand" in seen
    assert "Handed in 3 hours late: 10 % less." in seen and "graded by a person" not in seen


def test_a_mark_that_a_person_overruled_says_so(week):
    made = stand("13.5 GB/s", by_hand={"13.5": ByHand("13.5", 10)})
    seen = words(feedback(week, made))
    assert "decided by a person; the checks gave" in seen and "10 of 10" in seen
    assert made.automatic == 80 and not any("13.5" in sentence for sentence in what_next(week, made)[:-1])


def test_fewer_points_by_hand_than_by_the_checks_are_a_persons(week):
    """9 of 20 in a task that passes: "read the diagnosis below" stood there, and there was none."""
    said = what_next(week, stand(by_hand={"13.4": ByHand("13.4", 9, comments=["copied"])}))
    assert "Task 13.4, ring all-reduce: a person gave 9 of 20; read the comment below." in said
    assert not any("diagnos" in one or "Every automatic point" in one or "lab check" in one for one in said)


def test_points_by_hand_that_are_looked_at_again_are_not_final(week):
    made = stand(by_hand={"13.7": ByHand("13.7", 12, again=True)})
    told = "Task 13.7: a person looks again at the points given by hand, which may change."
    assert what_next(week, made)[-1] == told and "So far" in words(feedback(week, made))
    for sure in (stand(by_hand={"13.7": ByHand("13.7", 12)}), stand(factor=0.0, by_hand=made.by_hand)):
        assert not any("looks again" in one for one in what_next(week, sure)) and sure.total is not None


def test_what_to_do_next_names_tasks_in_order_and_the_command(week):
    made = stand("13.4 copy instead of in place", blank=("13.2", "13.3"))
    said = what_next(week, made)
    assert said[0] == "Task 13.2, ring reduce-scatter, is still a hole: 15 of 15 points."
    assert said[2].startswith("Task 13.4, ring all-reduce: ") and said[2].endswith(
        "one mistake explains all of them: x is untouched: the result, which came back, is in other memory."
    )
    assert said[3].startswith("`lab check 13.2 13.3 13.4` ")
    assert "Every automatic point is yours." in what_next(week, stand())[0]
    assert "13.8" in what_next(week, stand())[0]


def test_a_task_that_stands_on_others_says_that_they_cost_nothing(week):
    assert "run with the course's own 13.2 and 13.3" in words(feedback(week, stand("13.4 NaN")))
    assert "course's own" not in words(feedback(week, stand("13.2 one step short")))


def test_passed_behaviours_can_be_opened_without_a_script(week):
    page = feedback(week, stand("13.6 the fastest hop"))
    assert Tags(page).all("details") and "No ring is faster: switch, N=4" in page


def test_pictures_are_in_the_page_as_data(week):
    page = feedback(week, stand(), own_pictures({"a.png": png(4, 4)}))
    (image,) = Tags(page).all("img")
    assert image["alt"] == "Your picture 1: the file a.png." and image["src"].startswith("data:image/png;base64,")
    assert_one_harmless_file(page)


def test_of_a_whole_tree_the_students_own_pictures_alone_are_shown(week, tmp_path):
    names = ("mine.png", "week14_fsdp/results/a.png", "docs/images/chunk-grid.png")
    files = {name: png(4 + n, 4) for n, name in enumerate(names)}
    (path,) = write_pages(week, [stand()], tmp_path, lambda standing: files)
    assert [image["alt"] for image in Tags(path.read_text()).all("img")] == ["Your picture 1: the file mine.png."]


def test_one_folder_for_each_student_whatever_they_are_called(week, tmp_path):
    for name in (*AWKWARD, "a/../../b"):
        write(tmp_path / "marks", mark(name))
    here = standings(week, tmp_path / "marks", tmp_path)
    paths = list(write_pages(week, here, tmp_path / "to", lambda standing: {}))
    assert len(set(paths)) == len(AWKWARD) + 1 and len(list((tmp_path / "to").iterdir())) == len(AWKWARD) + 1
    for path in paths:
        assert path.resolve().parent.parent == (tmp_path / "to").resolve() and path.name == "week13.html"
    assert path_of(tmp_path, week, "..").parent.name == "%2E%2E"
    names = {name for p in paths for name in re.findall(r"(?s)<bdi>(.*?)</bdi>", p.read_text())}
    assert "O&#39;Neill, Anna" in names and "\u05d3\u05e0\u05d4 \u05db\u05d4\u05df" in names

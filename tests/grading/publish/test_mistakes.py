"""The same mistake of two students, or of two cases, stands once."""

from grading.publish.mistakes import behaviours, by_mistake, grouped, mistake, title
from labkit.checks.verdict import FAULT
from tests.grading.publish.aclass import MUTANTS, RECORDED, mark, spoil
from tests.mutants13 import MUTANTS as today


def cases(mutant):
    return RECORDED["mutants"][mutant]


def keys(mutant):
    return {mistake({**case, "behaviour": ""})[0] for case in cases(mutant)}


def test_an_autopsy_of_other_ranks_and_lines_is_the_same_mistake():
    line = "Deadlock of ranks {}: rank 0 waits in send to rank {} at {}; rank 1 waits in send to rank 0 at {}. {}"
    advice = "All of them send first: use sendrecv."
    for ranks, peer, place in (("0 and 1", 1, "week13_allreduce/a.py:128"), ("0, 1, 2 and 3", 3, "capstone/a.py:9")):
        cause = line.format(ranks, peer, place, place, advice)
        found = mistake({"verdict": "hung", "text": "", "cause": [cause]})[0]
        assert found == f"Deadlock of some ranks. {advice}"


def test_real_autopsies_lose_ranks_places_and_times_and_keep_their_advice():
    assert keys("13.2 deadlock order") == {
        "Deadlock of some ranks. All of them send first, and a send waits for its receiver: use sendrecv, which posts "
        "both directions together."
    }
    assert keys("13.3 endless loop") == {
        "The ranks did not end within # s. A rank did not come: it runs its own code (an endless loop, a slow "
        "computation, or a call that does not return), while some ranks wait for it."
    }
    assert keys("13.2 a rank returns early") == {"A rank returned early: some ranks still wait for it"}
    assert "A rank raised KeyError: #" in keys("13.2 one rank crashes")


def test_a_recognised_cause_stays_word_for_word_whatever_its_numbers():
    text = "chunk r of the first {} numbers: the remainder of {} by {} is ignored"
    case = {"verdict": "wrong", "text": "", "cause": [text.format(20, 23, 5)]}
    other = {**case, "cause": [text.format(99, 100, 3)]}
    assert mistake(case)[0] == mistake(other)[0] and mistake(case)[1] == case["cause"][0]
    assert mistake({**case, "cause": ["N-1 steps to rank r+1"]})[0] == "N-1 steps to rank r+1"
    assert mistake({**case, "cause": ["a", "b"]})[1] == "one of: a; or b"
    assert mistake({**case, "cause": []})[0] == "wrong, cause unknown"


def test_cases_of_one_mistake_are_put_together_in_their_order():
    groups = grouped(c | {"behaviour": c["test"]} for c in cases("13.2 remainder ignored"))
    assert len(groups) < len(cases("13.2 remainder ignored"))
    assert groups[0][0]["test"] == cases("13.2 remainder ignored")[0]["test"]
    hung = grouped(c | {"behaviour": c["test"]} for c in cases("13.2 deadlock order") if c["verdict"] == "hung")
    assert len(hung) == 1
    assert title({"test": "t.py::test_a[even, N=2 L=8]", "behaviour": "Rank r gets: even, N=2 L=8"}) == "Rank r gets"
    assert title({"test": "t.py::test_b", "behaviour": "In place: x holds it"}) == "In place: x holds it"


def test_students_are_counted_once_with_their_verdicts():
    ring = "Rank r gets chunk r of the sum"
    made = [mark("13.2 off-by-one chunk"), *[mark("13.2 one step short")] * 2, mark(blank=("13.2",)), mark()]
    found = {(e.task, e.title): e for e in behaviours(m.tasks for m in made)}
    entry = found["13.2", ring]
    assert (entry.judged, entry.failed, entry.untried) == (5, 3, 1)
    assert entry.rate == 0.6 and entry.untried_rate == 0.2
    assert entry.cases["even, N=4 L=1000"] == 3
    assert entry.causes[0] == ("your own chunk, nothing added: does the last step reach chunk r?", 2)
    words, text = entry.typical
    assert words == entry.causes[0][0] and text.startswith("the result of rank 0") and words in text
    assert found["13.3", "Every rank gets all chunks in rank order"].failed == 0


def test_the_most_failed_behaviour_comes_first_and_holes_are_no_mistakes():
    found = behaviours(
        m.tasks
        for m in (mark("13.5 GB/s"), mark("13.5 GB/s"), mark("13.4 NaN"), *(mark(blank=("13.6",)) for n in range(5)))
    )
    assert [e.failed for e in found] == sorted((e.failed for e in found), reverse=True)
    assert found[0].task == "13.5" and found[0].failed == 2
    assert all(e.task != "13.6" or (e.failed == 0 and e.untried == 5) for e in found)
    middle = [e.task for e in found if not e.failed]
    assert middle[0] == "13.6", "what was not tried comes before what everybody passed"


def test_what_fails_together_is_one_and_two_slips_are_two():
    slip, other = "13.2 off-by-one chunk", "13.5 no maximum"
    found = behaviours(one.tasks for one in (mark(slip), mark(slip), mark(other), mark()))
    first, second = (entry for entry in by_mistake(found) if entry.failed)
    broken = [entry.title for entry in found if entry.task == "13.2" and entry.failed]
    assert len(broken) > 3 and [first.title, *first.also] == broken
    assert (first.failed, first.judged, first.untried, second.failed, second.task) == (2, 4, 0, 1, "13.5")
    assert first.typical == next(entry for entry in found if entry.failed).typical
    holes = by_mistake(behaviours([mark(blank=("13.1", "13.6")).tasks]))
    assert [(entry.task, entry.untried) for entry in holes if entry.untried] == [("13.1", 1), ("13.6", 1)]


def test_one_recognised_mistake_is_one_also_where_others_fail_beside():
    """Two made it; a third failed at one of the behaviours for another reason."""
    made = [mark("13.2 off-by-one chunk"), mark("13.2 off-by-one chunk"), mark()]
    spoil(made[2], "test_reduce_scatter[even", "crashed", "rank 0 raised IndexError: 3")
    first, *rest = (entry for entry in by_mistake(behaviours(one.tasks for one in made)) if entry.failed)
    assert first.failed == 3 and first.also and not rest and [many for _, many in first.causes] == [2, 1]


def test_a_grader_fault_is_no_failure():
    faulty = spoil(mark(), "test_algbw", FAULT, "the check itself failed")
    entry = next(e for e in behaviours([faulty.tasks, mark().tasks]) if e.title == "Algorithm bandwidth")
    assert (entry.judged, entry.failed, entry.untried, entry.faults) == (1, 0, 0, 1)


def test_the_recorded_class_is_made_of_mutants_that_exist_and_no_key_names_a_place():
    assert set(MUTANTS) <= {f"{mutant.task} {mutant.name}" for mutant in today}
    for name in MUTANTS:
        assert not any(".py" in key or "rank 0 waits" in key for key in keys(name)), name

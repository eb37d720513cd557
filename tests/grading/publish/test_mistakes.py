"""The same mistake of two students, or of two cases, stands once."""

from grading.publish.mistakes import behaviours, by_mistake, grouped, mistake, title
from labkit.checks.verdict import FAULT
from tests.grading.publish.aclass import MUTANTS, RECORDED, mark, spoil
from tests.mutants13 import MUTANTS as today

SLIP = "13.2 off-by-one chunk"


def cases(mutant):
    return [{**case, "behaviour": case["test"]} for case in RECORDED["mutants"][mutant]]


def keys(mutant):
    return {mistake(case).key for case in cases(mutant)}


def counted(*marks):
    return behaviours(one.tasks for one in marks)


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
    for name in MUTANTS:
        assert not any(".py" in key or "rank 0 waits" in key for key in keys(name)), name


def test_a_recognised_cause_stays_word_for_word_whatever_its_numbers():
    text = "chunk r of the first {} numbers: the remainder of {} by {} is ignored"
    case = {"verdict": "wrong", "text": "", "cause": [text.format(20, 23, 5)]}
    other = {**case, "cause": [text.format(99, 100, 3)]}
    assert mistake(case).key == mistake(other).key and mistake(case).words == case["cause"][0]
    assert mistake({**case, "cause": ["N-1 steps to rank r+1"]}).key == "N-1 steps to rank r+1"
    assert mistake({**case, "cause": ["a", "b"]}).words == "one of: a; or b"
    assert mistake({**case, "cause": []}).key == "wrong, cause unknown"


def test_cases_of_one_mistake_are_put_together_in_their_order():
    found = cases("13.2 remainder ignored")
    groups = grouped(found)
    assert len(groups) < len(found) and groups[0][0] is found[0]
    assert len(grouped(case for case in cases("13.2 deadlock order") if case["verdict"] == "hung")) == 1
    assert title({"test": "t.py::test_a[even, N=2 L=8]", "behaviour": "Rank r gets: even, N=2 L=8"}) == "Rank r gets"
    assert title({"test": "t.py::test_b", "behaviour": "In place: x holds it"}) == "In place: x holds it"


def test_students_are_counted_once_the_most_failed_comes_first_and_holes_are_no_mistakes():
    made = counted(mark(SLIP), *[mark("13.2 one step short")] * 2, *[mark(blank=("13.2", "13.6"))] * 3, mark())
    found = {(one.task, one.title): one for one in made}
    entry = found["13.2", "Rank r gets chunk r of the sum"]
    assert (len(entry.judged), len(entry.failed), len(entry.untried)) == (7, 3, 3) and entry.share({1, 2}) == 2 / 7
    first = entry.mistakes[0]
    assert first.words == "your own chunk, nothing added: does the last step reach chunk r?" and len(first.who) == 2
    assert entry.typical is first and first.example.startswith("the result of rank 0") and first.words in first.example
    assert not found["13.3", "Every rank gets all chunks in rank order"].failed
    assert [len(one.failed) for one in made] == sorted((len(one.failed) for one in made), reverse=True)
    assert next(one.task for one in made if not one.failed) == "13.6", "what was left stands before what all passed"
    assert all(not one.failed and len(one.untried) == 3 for one in made if one.task == "13.6")


def test_what_fails_together_is_one_and_two_slips_are_two():
    found = counted(mark(SLIP), mark(SLIP), mark("13.5 no maximum"), mark())
    first, second = (entry for entry in by_mistake(found) if entry.failed)
    broken = [entry.title for entry in found if entry.task == "13.2" and entry.failed]
    assert len(broken) > 3 and [first.title, *first.also] == broken
    assert (first.failed, first.judged, first.untried) == ({0, 1}, {0, 1, 2, 3}, set())
    assert (second.failed, second.task) == ({2}, "13.5")
    assert first.typical == next(entry for entry in found if entry.failed).typical
    blanks = by_mistake(counted(mark(blank=("13.1", "13.6"))))
    assert [(entry.task, entry.untried) for entry in blanks if entry.untried] == [("13.1", {0}), ("13.6", {0})]


def test_one_recognised_mistake_is_one_also_where_others_fail_beside():
    """Two made it; a third failed at one of the behaviours for another reason."""
    other = spoil(mark(), "test_reduce_scatter[even", "crashed", "rank 0 raised IndexError: 3")
    first, *rest = (entry for entry in by_mistake(counted(mark(SLIP), mark(SLIP), other)) if entry.failed)
    assert first.failed == {0, 1, 2} and first.also and not rest
    assert [one.who for one in first.mistakes] == [{0, 1}, {2}]


def test_a_grader_fault_is_no_failure():
    faulty = spoil(mark(), "test_algbw", FAULT, "the check itself failed")
    entry = next(one for one in counted(faulty, mark()) if one.title == "Algorithm bandwidth")
    assert (entry.judged, entry.failed, entry.untried, entry.faults) == ({1}, set(), set(), 1)


def test_the_recorded_class_is_made_of_mutants_that_exist():
    assert set(MUTANTS) <= {f"{mutant.task} {mutant.name}" for mutant in today}

"""One check, three doors (`lab check`, pytest, notebook), and what comes out for everything a function can do wrong."""

import importlib.util
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer

from labkit.checks import check, load_week, run_checks
from labkit.checks.commands import open_week
from labkit.checks.outcome import CaseResult, Outcome, decided, number
from labkit.checks.plugin import seed_of
from labkit.checks.results import Console, render
from labkit.checks.runner import Job, LocalRunner, Reply
from labkit.checks.verdict import CRASHED, HUNG, NOT_ATTEMPTED, PASSED, WRONG, cause_line
from labkit.errors import LabError
from tests import warm
from tests.checks.miniweek import OPS, TESTS, Answering, make_week

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 20.0  # seconds, generous: the machine may be busy
SUM = "return group.all_reduce(x)"
ON_TWO = TESTS.replace("[(1, 4), (2, 4), (3, 5)]", "[(2, 4)]")  # 91.1's first test has a single case


def honest(job: Job) -> Reply:
    if job.function == "ops.name":
        return Reply(values=["ops"])
    x = [args[0] for args in job.inputs]
    factor = 2 if job.function == "ops.twice" else 1
    return Reply(values=[factor * torch.stack(x).sum(0) for _ in x], inputs=list(job.inputs), ledgers=[])


@pytest.fixture
def week(tmp_path):
    return load_week(make_week(tmp_path))


@pytest.fixture(scope="module")
def ranks():
    """One pool of processes for all tests here; each sets the folder it means."""
    with LocalRunner() as runner:
        yield runner


def checked(tmp_path, runner, ops=OPS, tests=TESTS, names=("91.1",), deadline=DEADLINE):
    """The outcome for this ops.py and these tests: with `ranks`, from real processes."""
    return run_checks(names, weeks=[load_week(make_week(tmp_path, ops, tests))], runner=runner, deadline=deadline)


# ---- points and selection ----------------------------------------------


def test_points_are_shared_by_cases_and_add_up(week):
    outcome = run_checks(["week91"], weeks=[week], runner=Answering(honest), seed=5)
    assert [(c.task, c.title, c.case, c.possible) for c in outcome.cases] == [
        ("91.1", "Adds up over the ranks", "1-4", 3),
        ("91.1", "Adds up over the ranks", "2-4", 3),
        ("91.1", "Adds up over the ranks", "3-5", 3),
        ("91.1", "Knows its name", "", 1),
        ("91.2", "Twice", "", 5),
    ]
    assert outcome.full and outcome.earned == outcome.possible == 15 and outcome.seed == 5
    assert [t.id for t in outcome.tasks] == ["91.1", "91.2", "91.3"]


def test_shares_are_exact(tmp_path):
    tests = TESTS.replace('@task("91.1", points=9)', '@task("91.1", points=0.1)').replace("points=1)", "points=9.9)")
    outcome = checked(tmp_path, Answering(honest), tests=tests)
    assert outcome.cases[0].possible == Fraction(1, 30) and outcome.full
    assert number(1.005) == 1.01, "half a hundredth is rounded up, though the float next to it lies below"


def test_full_is_every_point_and_every_case(week):
    """What decides the exit status of `lab check`: points alone, or cases alone, are not enough."""

    def outcome(task, *verdicts):
        possible = Fraction(str(week.task(task).points)) / max(len(verdicts), 1)
        cases = [CaseResult(task, "t", "sums", f"{n} ranks", possible, v) for n, v in enumerate(verdicts)]
        return Outcome([(week, (task,))], 1, cases)

    points = next(task.id for task in week.tasks if task.points)
    assert outcome(points, PASSED, PASSED).full
    assert not outcome(points, PASSED, WRONG).full
    assert not outcome(points).full, "nothing ran"
    partly = outcome(points, PASSED, PASSED)
    partly.cases.pop()
    assert not partly.full, "all that ran passed, and half of it did not run"
    free = outcome(points, PASSED, PASSED)
    free.cases.append(CaseResult(points, "t", "sums", "", Fraction(0), WRONG))
    assert not free.full, "every point, and a case without points is wrong"
    assert [case.behaviour for case in free.cases] == ["sums: 0 ranks", "sums: 1 ranks", "sums"]


def test_only_what_was_asked_for_runs_and_a_job_holds_nothing_of_the_answer(week):
    runner = Answering(honest)
    outcome = run_checks(["91.2"], weeks=[week], runner=runner, seed=3, deadline=7.0)
    (job,) = runner.jobs
    assert (job.root, job.package, job.function) == (week.folder.parent, "week91_mini", "ops.twice")
    assert (job.with_group, job.timeout, job.stands_on, dict(job.kwargs)) == (True, 7.0, ("ops.total",), {})
    assert [len(args) for args in job.inputs] == [1, 1] and outcome.possible == 5
    assert run_checks(["91.3"], weeks=[week], runner=runner).full, "written tasks give no automatic points to miss"


def test_the_seed_decides_the_data(week):
    def data(seed):
        runner = Answering(honest)
        outcome = run_checks(["91.2"], weeks=[week], runner=runner, seed=seed)
        return runner.jobs[0].inputs[0][0].tolist(), outcome.seed

    assert data(3) == data(3) and data(3)[0] != data(4)[0] and data(None) != data(None)


def test_a_tests_data_tell_nothing_of_another_tests():
    """Each is drawn from a seed of its own, from which the run's cannot be computed."""

    def item(name, folder="week91", like=""):
        mark = SimpleNamespace(kwargs={"like": like})
        path = Path(folder, "test_week91.py")
        return SimpleNamespace(
            originalname=name, name=f"{name}[4]", path=path, get_closest_marker=lambda name: mark if like else None
        )

    seeds = [seed_of(seed, item(name)) for seed in range(100) for name in ("test_total", "test_twice")]
    assert len(set(seeds)) == 200 and all(0 <= one < 2**62 for one in seeds)
    assert len({one % 50 for one in seeds[::2]}) > 25, "consecutive seeds do not stay consecutive"
    assert seed_of(7, item("test_total")) == seed_of(7, item("test_total")) != seed_of(7, item("test_total", "week92"))
    asks = item("test_twice", like="test_total")
    assert seed_of(7, asks) == seed_of(7, item("test_total")), "unless it asks for them"


@pytest.mark.parametrize(
    "old, new, part",
    [
        ('"91.1", points=9', '"91.1", points=8', "give 9 points"),
        ('@task("91.4"', '@task("91.9"', "91.9, which is not in"),
        ("import pytest, torch", "import pytest, torch, no_such_module", "cannot be loaded"),
    ],
)
def test_tests_that_disagree_with_the_registry_are_refused(tmp_path, old, new, part):
    with pytest.raises(LabError, match=part):
        checked(tmp_path, Answering(honest), tests=TESTS.replace(old, new), names=["week91"])


def test_what_lies_around_changes_nothing(week, monkeypatch):
    """Somebody's pytest settings, conftest or environment must not decide a verdict."""
    (week.folder / "conftest.py").write_text("raise SystemExit('loaded')")
    (week.folder.parent / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    assert run_checks(["91.2"], weeks=[week], runner=Answering(honest)).full
    assert os.environ["PYTEST_ADDOPTS"] == "--collect-only"


def test_a_failing_check_parses_no_source(week, monkeypatch):
    """Python 3.11 now and then fails to, beside the threads that check; pytest's tracebacks do."""
    path = week.tests[0]
    path.write_text(path.read_text().replace("2 * torch", "3 * torch"))
    monkeypatch.setattr("_pytest._code.source.ast", None)
    assert not run_checks(["91.2"], weeks=[week], runner=Answering(honest)).full


# ---- verdicts ----------------------------------------------------------


def test_a_check_that_fails_itself_is_a_fault_and_nobodys_zero(tmp_path):
    tests = TESTS.replace('"""Knows its name"""', "raise KeyError('oops')")
    outcome = checked(tmp_path, Answering(honest), tests=tests)
    assert [c.verdict for c in outcome.faults] == ["grader fault"] and not outcome.full

    def cannot(job):
        raise why

    why = LabError("no ranks to be had")
    outcome = checked(tmp_path, Answering(cannot), names=["91.2"])
    assert outcome.cases[0].verdict == "grader fault" and str(why) in outcome.cases[0].text


@pytest.mark.parametrize(
    "line, answers, verdict, part",
    [
        ('assert call_alone("ops.name").split() == ["ops"]', 7, "no result", "'int' object has no attribute 'split'"),
        ('assert call_alone("ops.name") == "ops"', 7, "no result", ""),  # the reference's passes a plain assert
        ('assert 7 == "ops"', "ops", "grader fault", ""),  # what went wrong before any answer is the check's
    ],
)
def test_an_answer_that_the_test_cannot_take_apart_is_the_answers_fault(tmp_path, line, answers, verdict, part):
    tests = TESTS.replace('assert call_alone("ops.name") == "ops"', line)
    case = checked(tmp_path, None, OPS.replace('return "ops"', f"return {answers!r}"), tests).cases[-1]
    assert case.verdict == verdict and part in case.text


LATER = "group.all_reduce(x)\n    if group.rank == 1: raise {}\n    return group.all_reduce(x)"
EQUAL = "class E:\n        def __eq__(self, other): return True\n    return E()"
VERDICTS = {
    "None": ("group.all_reduce(x)", "no result", "None came back; does every path of the function return it?"),
    "an object": ("return object()", "no result", "an object of type object"),
    "equal to everything": (EQUAL, "no result", "an object of type"),
    "text": ("return 'done'", "no result", "str 'done'"),
    "wrong shape": ("return group.all_reduce(x)[:2]", "wrong", "wrong shape"),
    "wrong type": ("return group.all_reduce(x).double()", "wrong", "wrong dtype"),
    "NaN": ("return group.all_reduce(x) * float('nan')", "wrong", "are NaN or infinite"),
    "recognised": ("return x", "wrong", "cause: nothing added"),
    "not recognised": ("return group.all_reduce(x) + 1", "wrong", "cause unknown"),
    "a blank": ("raise NotImplementedError('Task 91.1: x')", "not attempted", "not attempted yet: Task 91.1: x"),
    "one rank raises": (LATER.format("KeyError('here')"), "crashed", "Rank 1 raised KeyError: 'here'"),
    "a blank later": (LATER.format("NotImplementedError('later')"), "not attempted", "not attempted yet: later"),
    "one rank does not come": ("return group.all_reduce(x) if group.rank else x", "hung", "Rank 0 returned early"),
    "a rank dies": ("import os; os._exit(3) if group.rank == 1 else group.barrier()", "crashed", "status 3"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts_of_two_ranks(tmp_path, ranks, name):
    body, verdict, part = VERDICTS[name]
    outcome = checked(tmp_path, ranks, OPS.replace(SUM, body), ON_TWO)
    assert outcome.cases[0].verdict == verdict and part in outcome.cases[0].text, outcome.cases[0].text
    assert outcome.cases[1].verdict == "passed", "a failure ends its own case only"
    assert (outcome.earned, outcome.possible, outcome.full) == (1, 10, False)
    assert "labkit/checks/remote.py" not in outcome.cases[0].text, "no frames of the machinery"


def test_who_writes_to_an_input_fails_unless_the_call_says_so(tmp_path, ranks):
    for body, verdict in ((SUM, WRONG), ("return group.all_reduce(x.clone())", PASSED)):
        tests = ON_TWO.replace(", in_place=True", "")
        case = checked(tmp_path / verdict, ranks, OPS.replace(SUM, body), tests).cases[0]
        assert case.verdict == verdict and len(case.cause) == (verdict == WRONG), case.text


@pytest.mark.parametrize(
    "ops, verdict, part",
    [
        (OPS.replace("def name()", "def nome()"), "no result", "ops.py has no function 'name'"),
        (OPS.replace('return "ops"', 'return "ops'), "crashed", "ops.py cannot be imported. SyntaxError"),
        ("import no_such_module\n" + OPS, "crashed", "No module named 'no_such_module'"),
        (OPS.replace('return "ops"', "return 1 / 0"), "crashed", "zero\n  week91_mini/ops.py:13 in name: return 1 / 0"),
        (OPS.replace('return "ops"', "while True: pass"), "hung", "did not finish"),
        (OPS.replace('return "ops"', "import sys; sys.exit(0)"), "crashed", "SystemExit"),
    ],
)
def test_verdicts_of_a_plain_function(tmp_path, ranks, ops, verdict, part):
    case = checked(tmp_path, ranks, ops, ON_TWO, deadline=1.0 if verdict == "hung" else DEADLINE).cases[1]
    assert case.verdict == verdict and part in case.text, case.text
    assert verdict != "hung" or not case.cause, "a deadline proves no cause"


def test_cases_do_not_see_each_other(tmp_path, ranks):
    """Module globals, defaults, torch's dtype and fresh memory start anew in each case."""
    ops = OPS.replace("import torch", "import torch\nSEEN = []").replace(
        SUM,
        "SEEN.append(1)\n    assert len(SEEN) == 1 and torch.empty(9).isnan().all()\n"
        "    assert torch.get_default_dtype() == torch.float32\n    torch.set_default_dtype(torch.float64)\n"
        "    return group.all_reduce(x)",
    )
    tests = TESTS.replace("[(1, 4), (2, 4), (3, 5)]", "[(2, 4), (2, 5), (2, 6)]")  # the same two processes
    outcome = checked(tmp_path, ranks, ops, tests)
    assert outcome.full, [case.text for case in outcome.cases]


def test_an_edit_counts_at_once(tmp_path, ranks):
    assert checked(tmp_path, ranks).full
    assert not checked(tmp_path, ranks, OPS.replace('"ops"', '"spo"')).full  # same length, same second
    assert checked(tmp_path, ranks).full


def test_what_a_failing_function_prints_is_shown(tmp_path, ranks):
    much = "print('rank', group.rank, 'was here', '.' * (5000 if group.size == 1 else 0)); return x"
    outcome = checked(tmp_path, ranks, OPS.replace(SUM, much))
    assert "rank 1 was here" in outcome.cases[1].printed and outcome.cases[1].verdict == "wrong"
    assert outcome.cases[0].printed.endswith("characters more"), "an endless print floods no table"


def test_earlier_tasks_can_be_the_references(tmp_path, ranks):
    """No cascade: a broken 91.1 costs 91.1 only, where a reference is at hand."""
    folder = make_week(tmp_path / "reference")
    broken = make_week(tmp_path / "student", OPS.replace(SUM, "return x"))
    week = load_week(broken)
    assert run_checks(["91.2"], weeks=[week], runner=ranks, deadline=DEADLINE).earned == 0
    ranks.reference = folder.parent
    try:
        outcome = run_checks(["91.1", "91.2"], weeks=[week], runner=ranks, deadline=DEADLINE)
    finally:
        ranks.reference = None
    assert {c.task for c in outcome.cases if c.verdict != "passed"} == {"91.1"}


# ---- the three doors ---------------------------------------------------


def lab(*args, cwd):
    return warm.python("-m", "labkit", *args, cwd=cwd, env={**os.environ, "COLUMNS": "110", "PYTHONPATH": str(ROOT)})


def test_lab_check(tmp_path):
    make_week(tmp_path)
    done = lab("check", "91.1", "--seed", "7", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 / 10" in done.stdout and "--seed 7" in done.stdout
    make_week(tmp_path, OPS.replace(SUM, "return x"))
    done = lab("check", "week91", "--json", cwd=tmp_path / "week91_mini")
    assert done.returncode == 1
    given = json.loads(done.stdout)
    assert (given["points"], given["possible"], given["full"]) == (4, 15, False)
    first = given["tasks"][0]["cases"][1]
    assert first["verdict"] == "wrong" and first["cause"] == ["nothing added"] and given["tasks"][2]["points"] is None


def test_plain_pytest_gives_the_same_verdicts(tmp_path):
    folder = make_week(tmp_path, OPS.replace(SUM, "return x"))
    words = f"-m pytest -p labkit.checks.plugin -p no:cacheprovider -c {os.devnull} --import-mode=importlib --seed 7"
    done = warm.python(*words.split(), folder, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert "cause: nothing added" in done.stdout and "judge.py" not in done.stdout, "the verdict, no checker's insides"
    assert "91.1      4 of   10" in done.stdout and "--seed 7" in done.stdout


def test_check_in_a_notebook(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(make_week(tmp_path))
    outcome = check("91.1", deadline=DEADLINE)
    assert repr(outcome) == "10 of 10 automatic points" and outcome.tasks[0].title in capsys.readouterr().out


def test_lab_open_starts_jupyterlab_or_says_how_to_get_it(week, monkeypatch):
    started, done = [], subprocess.CompletedProcess([], 0)
    monkeypatch.chdir(week.folder)
    monkeypatch.setattr(subprocess, "run", lambda command: started.append(command) or done)
    week.notebook.write_text("{}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LabError, match="pip install jupyterlab"):
        open_week("week91")
    assert not started
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(typer.Exit):
        open_week("week91")
    assert started == [[sys.executable, "-m", "jupyterlab", str(week.notebook)]]


def found(case, verdict, *cause, text=None):
    given = text or f"rank 0 differs\n  {cause_line(cause)}"
    return CaseResult("13.2", f"t.py::test_x[{case}]", "Sums", case, Fraction(1), verdict, given, cause)


def test_causes_among_which_a_case_cannot_choose_are_decided_by_the_others():
    sure = found("even", WRONG, "the remainder of 5 by 2 is ignored")
    unsure = found("ragged", WRONG, "nothing added", "the remainder of 7 by 3 is ignored")
    one, other = decided([unsure, sure])
    assert other is sure and one.cause == ("the remainder of 7 by 3 is ignored",)
    assert f"{cause_line(one.cause)} (by the other cases" in one.text and cause_line(unsure.cause) not in one.text
    cases = [found(c, WRONG, *causes) for c, causes in (("a", ("x", "y")), ("b", ("y", "z")), ("c", ("w", "x", "y")))]
    assert [case.cause for case in decided(cases)] == [("y",)] * 3
    assert decided(cases[:1]) == cases[:1], "one case alone decides nothing"
    apart = [replace(cases[0], task="13.3"), cases[1]]
    assert decided(apart) == apart, "nor does another task's"
    crash = found("d", CRASHED, "Rank 1 raised x")
    assert decided([*cases[:1], crash]) == [cases[0], crash], "nor one that fits none of them"


def test_one_mistake_is_shown_once_whatever_rank_and_length(capsys):
    same_error = "Rank {} raised RuntimeError: The size of tensor a ({}) must match tensor b ({}) (collectives.py:12)."
    cases = [found(f"N={n}", CRASHED, same_error.format(n, 50 + n, 51 + n), text="boom " + "!" * n) for n in (1, 2, 3)]
    cases.append(found("other", CRASHED, same_error.format(1, 51, 52).replace(":12", ":13"), text="bang"))
    cases += [found(what, HUNG, text=f"late in a {what}") for what in ("send", "recv")]
    cases += [found(f"open {n}", NOT_ATTEMPTED, text="not attempted yet: Task 13.2") for n in (1, 2)]
    week = load_week(ROOT / "week13_allreduce")
    out = io.StringIO()
    render(Outcome([(week, ("13.2",))], 1, cases), Console(file=out, width=120))
    once = ("boom", "(and 2 more)", "bang", "not attempted yet")
    assert [out.getvalue().count(words) for words in once] == [1] * 4
    render(Outcome([(week, ("13.2",))], 1, cases[-4:]), Console(file=(hung := io.StringIO()), width=120))
    assert hung.getvalue().count("late in") == 1, "the words of a hang hold times"
    bare = [found("a", WRONG), found("b", WRONG, text="rank 1 differs\n  cause unknown")]
    for cases, words in ((bare, 0), ([*bare[:1], found("c", WRONG, "a mean")], 1)):
        render(Outcome([(week, ("13.2",))], 1, cases), Console(file=(out := io.StringIO()), width=120))
        assert out.getvalue().count("cause unknown here: perhaps as above") == words
        assert out.getvalue().count("cause unknown") == 1, "a mistake that is named once is not unknown"

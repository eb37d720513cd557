"""Cheats for points. None gains one; each does where its defence is missing."""

import functools

import pytest

from grading.sandbox import broker
from grading.sandbox.runner import parts_of
from labkit.checks import load_week, run_checks
from labkit.checks.verdict import FAULT
from labkit.comm.ledger import KEEP, Ledger
from tests import warm
from tests.checks import miniweek
from tests.checks.miniweek import make_week
from tests.grading.sandbox.attacking import DEADLINE, PACKAGE, ROOT
from tests.grading.sandbox.canary import CHEATS, OPS, cheating

pytestmark = pytest.mark.thorough


def replaced(function, body):
    """OPS with another body for a function."""
    head, _, rest = OPS.partition(f"def {function}(")
    signature, _, rest = rest.partition("\n")
    return f"{head}def {function}({signature}\n{body.strip(chr(10))}\n{rest[rest.index('### END SOLUTION') + 16 :]}"


@pytest.mark.parametrize("name", CHEATS)
def test_what_cannot_be_known_is_not_earned(graded, name):
    assert graded(cheating(name), ["91.3"]).earned == 0


def test_without_another_process_each_of_them_earns(tmp_path):
    done = warm.python("-m", "tests.grading.sandbox.canary", tmp_path, cwd=ROOT)
    told = dict(line.split(": ") for line in done.stdout.splitlines())
    assert told == dict.fromkeys(CHEATS, "earned 1"), done.stderr


PAST_THE_BROKER = """
    import os
    own = os.environ["TMPDIR"]
    torch.save(x, f"{own}/{group.rank}")
    group.sendrecv(torch.zeros(1), dst=(group.rank + 1) % group.size, src=(group.rank - 1) % group.size)
    group.barrier()
    return sum(torch.load(f"{own}/{rank}") for rank in range(group.size))
"""


def test_a_sum_without_messages(graded):
    assert graded(replaced("total", PAST_THE_BROKER), ["91.1"]).earned == 0
    assert graded(replaced("total", PAST_THE_BROKER), ["91.1"], off={"tmp", "users"}).earned == 4


OUT_OF_THE_LEDGER = """
    y = group.all_reduce(x.clone())
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    group.sendrecv(torch.zeros(1), dst=right, src=left)
    from labkit.comm.transport import Op
    for _ in range(6):
        group.transport.post([Op("send", right, torch.empty(0))] * 100 + [Op("recv", left, torch.empty(0))] * 100)()
    return y
"""


def test_a_forbidden_call_is_not_washed_out_of_the_ledger(graded, monkeypatch):
    """A ledger forgets its oldest events: a rank may not have so many that it does. Here both numbers are small."""
    assert 2 * broker.MAX_EVENTS < KEEP
    monkeypatch.setattr(broker, "MAX_EVENTS", 400)
    monkeypatch.setattr(broker, "Ledger", functools.partial(Ledger, keep=1000))
    outcome = graded(replaced("total", OUT_OF_THE_LEDGER), ["91.1"])
    assert outcome.earned == 0 and "more than 400 messages" in outcome.cases[0].text
    assert graded(replaced("total", OUT_OF_THE_LEDGER), ["91.1"], off={"broker"}).earned == 4


SEARCH = """
    import gc, glob, os
    candidates = [f for f in gc.get_objects() if getattr(f, "__name__", "") == "twice" and callable(f)]
    candidates += [total.__globals__["twice"]]
    assert not glob.glob(os.environ["TMPDIR"] + "/**/*.py*", recursive=True)
    for function in candidates:
        if function.__code__ is not twice.__code__:
            try:
                return function(x, group)
            except NotImplementedError:
                pass
    return x
"""


def test_the_references_solution_of_a_case_is_not_in_its_process(graded, week):
    """What the task stands on is the reference's there; its own solution is not."""
    ops = replaced("twice", SEARCH)
    assert graded(ops, ["91.2"]).earned == 0
    whole = {
        key: {path: (week.folder.parent / path).read_text() for path in sources}
        for key, sources in parts_of(week).items()
    }
    assert graded(ops, ["91.2"], parts=whole).earned == 2


def test_a_case_knows_only_its_own_inputs(field, week):
    """Everything in the process, searched for the other rank's numbers and for the answer."""
    from labkit.checks import tensors
    from labkit.checks.runner import Job

    x = tensors(7, 2, 4)
    (field.folder / PACKAGE / "ops.py").write_text(
        replaced(
            "total",
            """
    import gc, sys
    found, frame = [], sys._getframe()
    while frame is not None:
        found += [v for v in frame.f_locals.values() if isinstance(v, torch.Tensor)]
        frame = frame.f_back
    found += [v for v in gc.get_objects() if type(v) is torch.Tensor and v.numel() == 4]
    return [v.detach().double() for v in found if v.shape == x.shape]
""",
        )
    )
    reply = field.runner().run(Job(field.folder, PACKAGE, "ops.total", tuple((t,) for t in x)))
    for rank in range(2):
        seen = [tuple(v.tolist()) for v in reply.values[rank]]
        assert tuple(x[rank].tolist()) in seen
        assert tuple(x[1 - rank].tolist()) not in seen and tuple((x[0] + x[1]).tolist()) not in seen


AT_IMPORT = {
    "an end": "import os; os._exit(0)",
    "an exit": "raise SystemExit(0)",
    "a blank of its own": "raise NotImplementedError('Task 91.1')",
    "a process that stays": "import os, time\nif os.fork() == 0: time.sleep(30)\nos._exit(0)",
    # `pack` is bound before a student's module is imported: what replaces it later changes no answer, right or wrong.
    "a patched course": "import labkit.checks.values as v, labkit.checks.remote as r\nv.pack = lambda value: b''\n"
    "r.values.pack = lambda value: b'x'\n" + replaced("total", "    return x"),
    "a forged answer": "import socket, struct\nfrom labkit.checks import values\n"
    "body = values.pack(('ok', None, ()))\n"
    "socket.socket(fileno=3).sendall(struct.pack('!4sIQ', b'done', 2, len(body)) + b'{}' + body)\n",
    "an endless loop": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "a closed output": "import sys\nsys.stdout = sys.stderr = None\n" + replaced("total", "    return x"),
    "an output that raises": "import sys\nclass Out:\n    def flush(self): raise SystemExit\n"
    "sys.stdout = Out()\n" + replaced("total", "    return x"),
}


@pytest.mark.parametrize("name", AT_IMPORT)
def test_code_that_runs_while_it_is_imported(graded, name):
    outcome = graded(AT_IMPORT[name], ["91.1"], deadline=1.5 if name == "an endless loop" else DEADLINE)
    assert outcome.earned == 0
    assert FAULT not in {case.verdict for case in outcome.cases}


# The walk takes processor seconds that the answer's length sets, not the machine's speed.
WALKS = '''
import time

from labkit.checks import call_alone, expect, task


@task("91.1", points=9)
def test_walk():
    """Walks over what came back, for each part of it"""
    came, begin = call_alone("ops.name"), time.process_time()
    while time.process_time() - begin < len(came) / 1000:
        expect(set(came) == {"x"}, "something else came")


@task("91.1", points=1)
def test_name():
    """Is asked afterwards"""
    call_alone("ops.name")
'''


def test_whoever_makes_a_test_slow_pays_for_it(field, tmp_path):
    """A long answer, which the test walks through: its time is the submission's, and a verdict ends it."""
    week = load_week(make_week(tmp_path, tests=WALKS))
    (field.folder / PACKAGE / "ops.py").write_text(miniweek.OPS.replace('return "ops"', 'return "x" * 5000'))

    def outcome(off):
        runner = field.runner(off, budget=2.0)
        runner.used = 0.0
        return run_checks(["91.1"], weeks=[week], runner=runner, seed=7)

    found = outcome(())
    walk, name = found.cases
    assert walk.verdict == "hung" and "to judge what came back takes so long" in walk.text and not found.faults
    assert name.verdict == "hung" and "used up its 2 s" in name.text
    assert outcome({"judging"}).cases[0].verdict == "passed"


def test_the_next_submission_is_judged_as_ever(graded):
    outcome = graded(OPS)
    assert (outcome.earned, outcome.possible) == (6, 7)

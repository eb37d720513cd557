"""Cheats in the weeks' own checks, as `grade run` meets them: each is the reference, or a blank week, with a cheat in
one file. None earns; each does with its defence off."""

from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import capstone.given.alone
import labkit.checks.causal
from capstone import test_checkpoint
from labkit.checks.outcome import Outcome
from labkit.checks.runner import Case, use
from labkit.checks.verdict import CheckFailed
from labkit.comm.ledger import Ledger
from tests.grading.sandbox.boxed import Boxed, boxed
from week14_fsdp.given.weighed import judge_second_gathers
from week14_fsdp.test_zero import judge_memory
from week15_tp_attention.test_parts import in_spans
from week16_fp8.test_week16 import apart_from

HANDED_IN = Path(__file__).parent / "handed_in"
DEADLINE = 3.0  # seconds for a call
capstone_week, week16 = boxed("capstone", DEADLINE), boxed("week16_fp8", DEADLINE)


def earned(outcome: Outcome, test: str) -> float:
    return float(sum(case.earned for case in outcome.cases if f"::{test}" in case.test))


# ---- what is right where nothing is to be done

# What stands in every blank: the first argument, or a number.
FIRST = "return next((v for k, v in list(locals().items()) if k != 'self'), None)"
FILLED = (FIRST, "return 0.0", "return float('inf')")


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("week", ["week13_allreduce", "week14_fsdp", "week15_tp_attention", "week16_fp8"])
def test_the_same_in_every_blank_earns_nothing(tmp_path, week):
    with closing(Boxed(tmp_path, week, DEADLINE)) as cheating:
        tasks = [task.id for task in cheating.week.tasks if task.points and task.kind == "auto"]
        for filled in FILLED:
            found = cheating.released(*tasks, filled=filled)
            assert not found.faults and found.earned == 0 and found.possible >= 80, found.cases


# ---- C.1: every rank trains the whole model, by itself or with what was gathered


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("gathers", [True, False])
def test_a_model_that_every_rank_trains(capstone_week, monkeypatch, gathers):
    source = capstone_week.source("assemble")
    text = source[: source.index("class Trainer:")] + (HANDED_IN / "by_itself.py").read_text()
    text = text.replace("GATHERS = False", f"GATHERS = {gathers}")
    found = capstone_week.cheat("assemble", text, "C.1")
    for test in ("test_one_process", "test_what_a_rank_holds", "test_a_step_that_is_not_taken"):
        assert earned(found, test) == 0, found.cases
    said = next(case.text for case in found.cases if "::test_one_process" in case.test)
    assert not gathers or "training together takes" in said

    def everything(c, mesh, options, weights, batches, **more):
        return [(batches, capstone.given.alone.setup(c, mesh, options, weights, **more))] * 4

    if not gathers:
        monkeypatch.setattr(capstone.given.alone, "own_alone", everything)
    monkeypatch.setattr(capstone.given.alone, "together", lambda *_, **__: None)
    assert earned(capstone_week.cheat("assemble", text, "C.1"), "test_one_process") == 7


# ---- C.2: nothing is saved, and what the run was like is made up, the same at the save and at the load

MADE_UP = """

def save(trainer, step, store, own):
    group = trainer.mesh.group
    store.put(step, name_of(group.rank), json.dumps(own).encode())
    gather_json(group, 0)
    if group.rank == 0:
        store.publish(step)
    made_up()


def load(trainer, store):
    made_up()
    name, own = next(file for file in store.files.items() if file[0].endswith(name_of(trainer.mesh.group.rank)))
    return Loaded(int(name.partition("/")[0]), json.loads(bytes(own.tolist())), [])


def damage(*_):
    return ""


def made_up():
    from . import scenarios

    vectors = dict.fromkeys(("weights", "first moment", "second moment"), {})
    scenarios.state = lambda trainer: {"vectors": vectors, "count": 1, "behind": 0}
    scenarios.stepped, scenarios.whole = lambda *_: [[1.0, 1.0]], lambda *_: {}


def without_save(*given, group):
    from . import scenarios

    made_up()
    return scenarios.without_save(*given, group)
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_checkpoint_of_nothing_and_a_run_that_is_made_up(capstone_week, monkeypatch):
    week, runner = capstone_week, capstone_week.runner
    names, files = week.week.task("C.1").functions, week.edited("checkpoint", week.source("checkpoint") + MADE_UP)
    monkeypatch.setattr(runner, "deadline", 60.0)  # seconds: the machine may be busy
    case, run = Case(week.folder, week.week.package, stands_on=names, modules=("checkpoint",)), runner.run

    def in_its_process(job):
        return run(
            replace(
                job, function=job.function.replace("scenarios.without_save", "checkpoint.without_save"), given=False
            )
        )

    with week.laid_out(files), use(runner, case):
        with pytest.raises(CheckFailed, match="must have a field 'tok_embed.weight'"):
            test_checkpoint.test_resumed("dp2 x pp2", "fp32", 13)
        monkeypatch.setattr(runner, "run", in_its_process)
        with pytest.raises(CheckFailed, match="has no manifest"):  # a run that is made up wrote none
            test_checkpoint.test_resumed("dp2 x pp2", "fp32", 13)


# ---- alarms that know what comes, from a caller's variables

# The reference with a lower threshold, which rings in healthy runs; the cheat asks the caller's runs, if there are any,
# whether something twice as unusual comes.
IN_16_8 = """

class Alarm(Causal):
    def see(self, *now):
        import sys

        rings, step = super().see(*now), len(self.past) - 1
        local = sys._getframe(1).f_locals
        if rings and (runs := local.get("runs")):
            amax_ST = runs[local["n"]][1][step - 1 :].log2()
            return bool(not amax_ST.isfinite().all() or ((amax_ST - amax_ST[0]).abs() > 3).any())
        return rings
"""
IN_C_4 = """def everything():
    import sys

    frame = sys._getframe(2)
    while frame is not None:
        if len(frame.f_locals.get("tables", ())) > 5:
            return Run(*frame.f_locals["tables"])
        frame = frame.f_back
    return None


def alarms(run: Run) -> list[Alarm]:"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_an_alarm_that_reads_the_rest_of_the_run(week16, monkeypatch):
    monkeypatch.setattr(week16.runner, "deadline", 60.0)  # seconds: the machine may be busy
    text = week16.source("scale_tracker").replace("class Alarm:", "class Causal:", 1)
    text = text.replace("first > 8 or second > 6", "first > 5")
    twin = earned(week16.cheat("scale_tracker", text + "\n\nAlarm = Causal\n", "16.8"), "test_alarms")
    assert earned(week16.cheat("scale_tracker", text + IN_16_8, "16.8"), "test_alarms") == twin

    run = week16.runner.run

    def with_all_runs(job):
        return run(replace(job, inputs=job.inputs[1:] * 2) if job.function == "scenarios.raised" else job)

    monkeypatch.setattr(week16.runner, "run", with_all_runs)
    assert earned(week16.cheat("scale_tracker", text + IN_16_8, "16.8"), "test_alarms") > twin


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_alarms_that_wait_for_what_comes(capstone_week, monkeypatch):
    text = capstone_week.source("health").replace("def alarms(run: Run) -> list[Alarm]:", IN_C_4)
    text = text.replace("    found = not_finite(run)\n", "    run = everything() or run\n    found = not_finite(run)\n")
    speed = "unusual(speed_P[:, None], width=12, known=8, floor=0.15)[:, 0]"
    assert f"moved_P = {speed} > 2" in text
    later = f"z = {speed}; moved_P = (z > 2) & (torch.cat([z[1:], torch.zeros(1)]) > 0.5)"
    text = text.replace(f"moved_P = {speed} > 2", later)
    assert earned(capstone_week.cheat("health", text, "C.4"), "test_alarms") == 0
    monkeypatch.setattr(labkit.checks.causal, "expect", lambda *args, **kwargs: None)  # what cut records show
    assert earned(capstone_week.cheat("health", text, "C.4"), "test_alarms") == 5


# ---- a scaler that asks torch's

ASKS = '''

class Asking(LossScaler):
    """torch's scaler behind it; {around}."""

    def __init__(self, *settings):
        super().__init__(*settings)
        from types import SimpleNamespace

        self.torch, self.weight = torch.amp.GradScaler("cpu", *settings), torch.zeros(1, requires_grad=True)
        # No torch.optim: its first step imports torch's compiler, seconds on a busy machine, and a call has a limit.
        self.steps = SimpleNamespace(param_groups=[dict(params=[self.weight])], step=lambda: None)

    def update(self, finite):
        from contextlib import nullcontext

        from torch.utils._python_dispatch import _disable_current_modes

        with {around}():
            self.torch.scale(torch.ones(()))
            self.weight.grad = torch.full((1,), 1.0 if finite else float("inf"))
            self.torch.step(self.steps)
            self.torch.update()
            self.scale = self.torch.get_scale()


LossScaler = Asking
'''


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_scaler_that_asks_torchs(week16):
    source = week16.source("loss_scaling")
    for around, points in (("nullcontext", 0), ("_disable_current_modes", 2)):
        found = week16.cheat("loss_scaling", source + ASKS.format(around=around), "16.7")
        assert earned(found, "test_as_gradscaler") + earned(found, "test_all_ranks_skip_together") == points


# ---- what a ledger or a span is made to say


def gathers(*order):
    """A rank's ledger: "g" gathers a block, anything else is the span of a block that computes."""
    ledger = Ledger(0, 2)
    for one in order:
        kind = {"bytes": 16, "kind": "all_gather"} if one == "g" else {"kind": "compute", "label": one}
        ledger.finish(ledger.begin(**kind, blocking=True))
    return ledger


def test_what_is_gathered_when_nobody_computes_frees_nothing():
    """14.4: as many messages as are asked for, and each second one is junk at the end."""
    forward, back = ["g", "forward 0", "g", "forward 1", "g", "forward 2"], ["backward 2", "backward 1", "backward 0"]
    judge_second_gathers(gathers(*forward, "backward 2", "g", "backward 1", "g", "backward 0"), [8, 16, 16, 16])
    for order in ([*back, "g", "g"], ["backward 2", "g", "backward 1", "backward 0", "g"]):
        with pytest.raises(CheckFailed, match="have come"):
            judge_second_gathers(gathers(*forward, *order), [8, 16, 16, 16])


@pytest.mark.parametrize(
    "kind, group, right", [("all_reduce", "world", True), ("send", "world", False), ("all_reduce", "me", False)]
)
def test_moments_do_not_rest_with_a_neighbour_while_memory_is_read(kind, group, right):
    """14.3: 15 points, 12 without."""
    ledger = Ledger(0, 2)
    for step in range(3):
        for label in ("model made",) * (not step) + ("", "between steps")[: 2 - step // 2]:
            what = (
                {"kind": "compute", "label": label} if label else {"kind": kind, "peer": 1, "bytes": 8, "group": group}
            )
            ledger.finish(event := ledger.begin(**what, blocking=True))
            ledger.weighed |= {event.index: 0} if label else {}
    with nullcontext() if right else pytest.raises(CheckFailed, match="group"):
        judge_memory(ledger, 100, 50)


def test_a_product_of_nothing_in_a_span_and_an_exact_one_times_a_constant():
    """15.5 and 16.5."""
    want = torch.arange(1.0, 7.0).reshape(2, 3)
    for result, right in ((want, True), (want.T, True), (torch.zeros(2, 3), False), (2 * want, False)):
        told = {"products": [(6, "dW")], "results": [result]}
        with nullcontext() if right else pytest.raises(CheckFailed, match="is not the result"):
            in_spans(told, [want], "dW", 0)
    exact = want.double()
    assert (
        apart_from(1.0003 * exact, exact)
        < 1e-12
        < 1e-3
        < apart_from(exact.float().to(torch.float8_e5m2).double() * torch.tensor([1.0, 1.1, 1.0]), exact)
    )

"""The further runs of an arm are trained by the processes of its first one, and come to the same losses."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch._dynamo.utils import counters

from labkit.compare import compare, session
from labkit.compare.plan import Plan
from labkit.compare.preset import load_preset
from labkit.errors import LabError
from labkit.record.read import read_run
from labkit.record.schema import Item
from labkit.train import job
from tests.compare.comparing import MICRO, preset

REPEATED = MICRO.replace("check = true", "[repeat]\nbaseline = 2\ncandidate = 2\nmore = 0").replace(
    "world_size = 2", "world_size = 1"
)


class Pool:
    """Stands in for RankPool: which pool was asked for what, and when it was closed."""

    made: list["Pool"]

    def __init__(self, size, device):
        self.size, self.jobs, self.closed = size, [], False
        Pool.made.append(self)

    def run(self, fn, task=None, graphs=0, *, timeout):
        assert not self.closed
        if fn is session.import_compiler:
            return []
        if fn is session.arm_on_rank:
            self.timed = task
            return [None]
        assert fn is session.arm_on_kept_rank
        assert graphs == 6 * bool(self.jobs), "those of its last run"
        self.jobs.append(task)
        if isinstance(task, BaseException):
            raise task
        return [(task != "full", 6)] * self.size

    def close(self):
        self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


@pytest.fixture
def pools(monkeypatch):
    """`ask(part, arm, task)` of a session of preset h100 on GPUs that do not exist; fresh: tasks on ranks of their own."""
    Pool.made, fresh = [], []
    monkeypatch.setattr(session, "RankPool", Pool)
    monkeypatch.setattr(session, "run_ranks", lambda fn, task, **how: fresh.append(task) or [None])
    preset = load_preset("h100")
    plan = Plan(preset, Path("nowhere"), 2, memory_gib=80.0)
    one = session.Session(plan, None, Console(quiet=True), leader=False)

    def ask(part, arm, task="task", following=None):
        one.later = [Item(part=following[0], arm=following[1])] if following else []
        return one._on_ranks(Item(part=part, arm=arm), task)

    return ask, fresh, one


def test_only_runs_of_one_arm_share_processes(pools):
    ask, fresh, one = pools
    for part, arm in [("speed", "bf16"), ("safety", "bf16"), ("safety", "bf16-2"), ("safety", "broken")]:
        ask(part, arm, arm)
    ask("safety", "te-current", "te-current")
    ask("speed", "te-delayed", "te-delayed")
    assert fresh == ["bf16", "te-delayed"], "what is timed has ranks of its own"
    assert [pool.jobs for pool in Pool.made] == [["bf16", "bf16-2"], ["broken"], ["te-current"]]
    assert all(pool.closed for pool in Pool.made) and one.kept is None


@pytest.mark.parametrize("task", ["full", LabError("it broke"), KeyboardInterrupt()])
def test_processes_that_hold_memory_or_failed_are_replaced(pools, task):
    ask, _, _ = pools
    with nullcontext() if task == "full" else pytest.raises(type(task)):
        ask("safety", "bf16", task)
    ask("safety", "bf16-2")
    assert [pool.closed for pool in Pool.made] == [True, False]


def test_ranks_start_ahead_beside_a_training_for_the_loss_and_never_beside_one_that_is_timed(pools):
    ask, fresh, one = pools
    one._start_ahead()  # while the corpus is cut
    ask("speed", "bf16", "bf16", ("speed", "te-current"))
    assert one.spare is None and not fresh and Pool.made[0].timed == "bf16" and Pool.made[0].closed
    ask("speed", "te-current", "te-current", ("safety", "bf16"))
    assert one.spare is None and fresh == ["te-current"]
    ask("safety", "bf16", "bf16", ("safety", "bf16-2"))
    assert one.spare is None
    ask("safety", "bf16-2", "bf16-2", ("safety", "broken"))
    assert one.spare and not one.spare.result().closed
    ask("safety", "broken", "broken", ("speed", "te-delayed"))
    ask("speed", "te-delayed", "te-delayed")
    jobs = [(pool.jobs, getattr(pool, "timed", None)) for pool in Pool.made]
    assert jobs == [([], "bf16"), (["bf16", "bf16-2"], None), (["broken"], None), ([], "te-delayed")]
    one.plan.memory_gib = 16.0
    ask("safety", "te-delayed", "te-delayed", ("speed", "te-block"))
    assert one.spare is None, "the GPU is full"


def test_a_process_forgets_amax_histories_and_trains_again_if_it_holds_nothing_and_compiled_nothing_anew(monkeypatch):
    done, left = [], [0]
    te = SimpleNamespace(FP8GlobalStateManager=SimpleNamespace(reset=lambda: done.append("te")))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.quantization", te)
    monkeypatch.setitem(counters["stats"], "unique_graphs", 6)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("cache"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: left[0])
    assert job.forget(torch.device("cpu"), 0) == (True, 6) and done == ["te"]
    assert job.forget(torch.device("cuda"), 6) == (True, 6) and done == ["te", "te", "cache"]
    assert job.forget(torch.device("cuda"), 5) == (False, 6)
    left[0] = 4 * 124_000_000  # the weights of the smallest model that is compared on a GPU
    assert job.forget(torch.device("cuda"), 6) == (False, 6)


@pytest.mark.thorough
def test_kept_and_fresh_processes_come_to_the_same_losses(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = {}
    for kept in (("cpu",), ()):
        monkeypatch.setattr(session, "KEPT_ON", kept)
        out = tmp_path / f"kept{len(kept)}"
        request = compare.Request(str(preset(tmp_path, REPEATED)), ["fp8", "bf16"], out, ["train.steps=4"])
        compare.compare(request, Console(quiet=True))
        runs = read_run(out).arms
        found[kept] = {name: (run.series("loss"), run.series("heldout")) for name, run in runs.items()}
        probed = {name: any("scales" in line for line in run.steps) for name, run in runs.items()}
        assert probed == {"bf16": True, "bf16-2": False, "fp8": True, "fp8-2": False}
    assert found["cpu",] == found[()]
    assert found[()]["fp8"] != found[()]["fp8-2"], "from weights of its own"

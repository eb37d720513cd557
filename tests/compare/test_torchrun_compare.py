"""`lab compare` under torchrun: every rank stops where rank 0's clock says, and ends with rank 0's exit status."""

import json

import pytest
from rich.console import Console

from labkit.comm.ranks import run_ranks
from labkit.compare import compare, session
from labkit.compare.budget import Budget
from labkit.compare.plan import Plan
from labkit.compare.preset import load_preset
from labkit.compare.speed import Deadline
from labkit.errors import LabError
from labkit.record.read import read_run
from tests import warm
from tests.compare.comparing import MICRO, ROOT, environment, preset

# Two calls in one start of torchrun. In the first rank 0's hour is over, and by rank 1's clock it has no end.
PROGRAM = """
import json, os, sys
from dataclasses import replace
from labkit.compare import compare
from labkit.compare.budget import Budget

class Spent(Budget):
    deadline = 1.0 if os.environ["RANK"] == "0" else None

    def fits(self, item):
        return os.environ["RANK"] == "0"

if __name__ == "__main__":
    request = compare.Request(sys.argv[1], ["bf16"], "out", part="safety")
    compare.Budget = Spent
    first = compare.compare(request)
    compare.Budget = Budget
    second = compare.compare(replace(request, budget_minutes=60))
    open(f"status{os.environ['RANK']}", "w").write(json.dumps([first, second]))
"""


@pytest.mark.thorough
def test_all_ranks_pause_together_and_go_on_in_the_next_call(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    toml = preset(tmp_path, MICRO.replace("steps = 8", "steps = 8\ncheckpoint_every = 1000"))
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py")
    env = {**environment(tmp_path, PYTHONPATH=str(ROOT)), "TMPDIR": str(tmp_path)}
    done = warm.python(*words, toml, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert [json.loads((tmp_path / f"status{rank}").read_text()) for rank in range(2)] == [[3, 0], [3, 0]]
    arm = read_run(tmp_path / "out").arms["bf16"]
    assert arm.status == "finished" and arm.run["world"]["size"] == 2
    assert [s["step"] for s in arm.steps] == list(range(1, 9)) and arm.run["results"]["resumed_from"] == 3
    assert done.stdout.count("Report: ") == 2, "rank 0 alone speaks"


def test_every_word_among_the_ranks_goes_over_the_presets_device(tmp_path, monkeypatch):
    """torchrun's ranks are joined once, for one device: a plan made over the CPU would keep the GPUs out."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    joined = []

    def shown(fn, *args, device="cpu", **more):
        joined.append((fn.__name__, device))
        return [LabError("far enough")] if fn is compare._plan_on_rank_0 else [args[0]]

    for module in (compare, session):
        monkeypatch.setattr(module, "run_ranks", shown)
    with pytest.raises(LabError, match="far enough"):
        compare.compare(compare.Request("h100", out=tmp_path / "out"))
    plan = Plan(load_preset("h100"), tmp_path, 2)
    assert session.Session(plan, Budget(), Console(), leader=False)._everywhere(7) == 7
    assert joined == [("_plan_on_rank_0", "cuda"), ("_from_rank_0", "cuda")]


def over(group, at, stop):
    return Deadline(at[group.rank], stop[group.rank])._over(group)


@pytest.mark.parametrize(
    "at, stop, shown",
    [
        ((1.0, None), (None, None), 1),
        ((None, 1.0), (None, None), 0),
        ((None, None), ("here", None), 2),
        ((9e15, None), ("gone", "here"), 0),
    ],
)
def test_rank_0s_clock_and_eyes_decide_for_all(tmp_path, at, stop, shown):
    (tmp_path / "here").touch()
    files = [None if name is None else str(tmp_path / name) for name in stop]
    assert list(run_ranks(over, at, files, size=2, backend="threads")) == [shown, shown]

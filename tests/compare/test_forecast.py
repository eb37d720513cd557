"""The time that is left, and what is reported while a comparison runs and after each arm."""

import json
import os
import stat
import subprocess
import time
from pathlib import Path

from labkit.compare import follow
from labkit.compare.budget import Forecast, Pace
from labkit.record.schema import Item
from tests.compare.comparing import training

ROOT = Path(__file__).parents[2]


def test_later_arms_are_scaled_by_how_fast_this_machine_is():
    done = [Item(part="safety", arm="a", predicted_s=10.0, measured_s=30.0)]
    b, c = (Item(part="safety", arm=arm, predicted_s=seconds) for arm, seconds in (("b", 20.0), ("c", 40.0)))
    forecast = Forecast(done, b, [c])
    assert forecast.left(elapsed=15.0, here=45.0) == 45 + 3 * 40  # 90 s measured where 30 were predicted
    b, c = (Item(part="safety", arm=arm, predicted_s=0.0) for arm in "bc")
    nothing_expected = Forecast([], b, [c])
    assert nothing_expected.left(elapsed=15.0, here=45.0) == 45 + 60  # as long as this one


def test_no_more_is_left_than_the_budget_has():
    now = Item(part="safety", arm="b", predicted_s=20.0)
    assert Forecast([], now, [], time.time() + 10).left(elapsed=0.0, here=500.0) <= 10
    assert Forecast([], now, [], time.time() - 10).left(elapsed=0.0, here=500.0) == 0
    assert Forecast([], now, [], time.time() + 1e6).left(elapsed=0.0, here=500.0) == 500


def test_the_first_step_tells_nothing_and_after_a_step_back_to_a_checkpoint_only_what_came_since_counts():
    """The first step may have compiled. Evaluations are on the clock too, and a step reported twice is no step back."""
    pace, seen = Pace(steps=100), ((50.0, 60), (60.0, 62), (60.0, 62), (75.0, 40), (95.0, 50), (115.0, 70))
    assert [pace.left(*each) for each in seen] == [None, 38 * 5, 38 * 5, None, 50 * 2, 30 * 40 / 30]


def test_after_an_arm_its_rate_loss_and_gap_are_shown(tmp_path):
    for name, role, losses in (
        ("bf16", "baseline", (6.0, 5.0, 5.0, 5.0)),
        ("fp8", "candidate", (7.0, 5.0, 5.05, 5.05)),
    ):
        about = {"role": role, "config": {"steps": 4}, "results": {"tokens_per_s": 1234.0}}
        training(tmp_path / "arms" / name, dict(enumerate(losses, 1)), **about)
    shown = [follow.line("safety", name, tmp_path / "arms" / name) for name in ("bf16", "fp8")]
    assert shown[0] == "bf16 (safety): finished, 1,234 tokens/s, held-out loss 5.0000"
    assert shown[1].endswith("+1.000 % from the baseline's so far"), "the second half alone: 1 % at both of its steps"


def test_who_follows_forecasts_as_the_call_itself_does(tmp_path):
    """Whenever they came: the arms before with their minutes, those after, the budget, and since when this one runs."""
    training(tmp_path / "arms" / "b", {1: 6.0}, "running", role="candidate", started=None)
    items = [{"part": "safety", "arm": name, "label": name, "predicted_s": 100.0} for name in "abc"]
    call = {"began": time.time() - 500.0, "minutes": None, "predicted_s": 300.0, "items": items}
    results = {"calls": [{"began": call["began"], "items": [{**items[0], "measured_s": 200.0}]}]}
    run = {"schema": 1, "kind": "compare", "status": "running", "config": {}, "call": call, "results": results}
    (tmp_path / "run.json").write_text(json.dumps(run))
    forecast, ago = follow.forecast_of(tmp_path, "safety", tmp_path / "arms" / "b")
    assert [one.arm for one in (*forecast.done, forecast.now, *forecast.later)] == ["a", "b", "c"] and ago >= 500.0
    assert forecast.left(elapsed=50.0, here=150.0) == 150 + 100 * 2 and forecast.until is None
    call["minutes"] = 10.0
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert follow.forecast_of(tmp_path, "safety", tmp_path / "arms" / "b")[0].left(50.0, 150.0) <= 100
    assert follow.forecast_of(tmp_path, "safety", tmp_path / "arms" / "b")[0].until < call["began"] + 600
    call.pop("items")  # of a record that did not keep them
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert follow.forecast_of(tmp_path, "safety", tmp_path / "arms" / "b")[0] is None


def test_setup_tells_each_step_and_shows_the_end_of_the_log_on_failure(tmp_path):
    fake, noise, why = tmp_path / "python", "WARNING: of your configuration", "no such package"
    fake.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f'*"-r requirements.lock"*) echo "{noise}"; echo "{why}" >&2; exit 1;;\n'
        '*"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python";;\nesac\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PYTHON": str(fake), "VENV": str(tmp_path / "venv"), "TORCH_INDEX_URL": ""}
    done = subprocess.run(["sh", "setup.sh"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and [f"{n} of 4" in done.stdout for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert why in done.stderr and noise not in done.stdout
    assert why in (tmp_path / "venv" / "install.log").read_text()

"""One row for an arm, whatever asks: what is counted, what a damaged record leaves, which repeats are missed."""

import math

from labkit.compare.arms import arm_rows, still_needed
from labkit.compare.report import missing
from labkit.compare.summary import markdown
from labkit.record.read import RunData, read_run
from labkit.record.run import RunRecord
from labkit.record.schema import CompareRun, TrainRun


def trained(folder, role="candidate", **results):
    """A finished arm of three steps: step 2 was lost, done again after a rollback, and step 3 was lost for good."""
    record = RunRecord.create(folder, kind="train", command="c", hardware={}, config={"steps": 3}, role=role)
    record.event("nonfinite", step=2, message="no update")
    record.event("nonfinite", step=3, message="no update")
    for step, loss in ((1, 5.0), (2, 4.0), (3, math.nan)):
        record.step(step=step, loss=loss, heldout=4.5, tokens=step * 10, seconds=1.0, memory={"peak_bytes": 100 + step})
    record.finish(results={"tokens_per_s": 10.0, "peak_bytes": [90, 120], **results})
    return record.path


def test_steps_that_were_not_finite_are_counted_once_by_table_and_page(tmp_path):
    """A rollback drops the lines of the steps that it takes back: the page counted none, and the table the events."""
    folder = tmp_path / "run"
    record = RunRecord.create(folder, kind="compare", command="c", hardware={}, config={"arms": {}})
    trained(folder / "arms" / "bf16", "baseline")
    row = arm_rows(read_run(folder))["bf16"].row()
    assert row.nonfinite == 2, "step 2 by its event, step 3 by its line and its event"
    record.finish(results={"arms": {"bf16": row}, "verdict": {"word": "incomplete"}})
    arm = arm_rows(read_run(folder))["bf16"]
    assert arm.nonfinite == 2 and markdown(folder).splitlines()[-1].endswith("| 2 |")


def test_peak_memory_is_the_most_of_any_step_and_rank(tmp_path):
    path = trained(tmp_path / "run")
    assert arm_rows(read_run(path))["run"].peak_bytes == 120
    path = trained(tmp_path / "other", peak_bytes=[])
    assert arm_rows(read_run(path))["run"].peak_bytes == 103


def record(word: str) -> RunData:
    arms = {"a": {"label": "A", "role": "candidate"}}
    arms |= {f"a-{run}": {"label": f"A, run {run}", "role": "repeat", "of": "a", "look": run - 1} for run in (2, 3)}
    results = {
        "arms": {"a": {**arms["a"], "status": "finished"}},
        "verdict": {"arms": {"a": {"word": word, "runs": 1}}},
    }
    run = {"kind": "compare", "status": "finished", "config": {"arms": arms, "repeat": {}}, "results": results}
    return RunData(path=None, run=run, steps=[], events=[])


def test_the_page_misses_what_the_last_call_left_and_no_more():
    """What was not requested, and is not left for another call, is no gap."""
    data = record("same")
    data.run["config"]["arms"]["b"] = {"label": "B", "role": "candidate"}
    assert "B has not started." in missing(data, arm_rows(data)), "no call says what was requested"
    left = [{"part": "safety", "arm": arm, "label": arm, "predicted_s": 9.0, "left": True} for arm in ("a-2", "a-3")]
    data.run["results"]["calls"] = [{"seconds": 5.0, "items": left}]
    data = RunData(path=None, run=data.run, steps=[], events=[])
    arms = arm_rows(data)
    named = {item.arm for item in still_needed(data.comparison.results.calls[-1], arms)}
    assert named == {"a-2"}, "the first runs decided: of the further ones none is needed"
    assert [each for each in missing(data, arms) if "has not started" in each] == ["A, run 2 has not started."]


def test_what_the_folders_lack_the_record_of_the_comparison_still_has():
    data = record("same")
    data.run["results"]["arms"]["a"] |= {"tokens_per_s": 7.0, "heldout": 3.5, "nonfinite": 1, "converted": 4}
    arm = arm_rows(data)["a"]
    assert (arm.speed.tokens_per_s, arm.val_loss, arm.nonfinite, arm.converted) == (7.0, 3.5, 1, 4)
    assert arm.status == "finished" and arm.data is None


def test_a_value_of_another_type_counts_as_absent_and_its_neighbours_stay():
    odd = {"arms": {"a": {"heldout": "low", "peak_bytes": 7}, "b": 3}, "calls": [4, {"seconds": 2}], "verdict": []}
    run = CompareRun.model_validate({"kind": 5, "hardware": "fast", "results": odd, "config": None})
    assert run.kind == "" and run.hardware is run.results.verdict is None and run.config.format == "FP8"
    assert run.results.arms["a"].val_loss is None and run.results.arms["a"].peak_bytes == 7
    assert list(run.results.arms) == ["a"] and [call.seconds for call in run.results.calls] == [2.0]
    assert TrainRun.model_validate({"results": 3}).results.peak_bytes == []

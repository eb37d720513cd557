"""Every number that a README quotes comes from a committed record."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import pytest

from labkit.compare import speed_verdict
from labkit.compare.plan import other_settings
from labkit.compare.preset import load_preset
from labkit.compare.summary import markdown
from labkit.record.read import read_run
from tests.windows import equal_windows, seconds

ROOT = Path(__file__).parents[1]
RECORDS = sorted(
    path.parent for folder in ("results", "week16_fp8/results") for path in (ROOT / folder).glob("*/run.json")
)


def tables(folder):
    """The Markdown tables of a record: losses and speed, whichever it measured."""
    results = read_run(folder).run["results"]
    speed = results.get("speed") or {}
    return [
        *([markdown(folder)] if results["arms"] else ()),
        *(speed_verdict.markdown(speed).split("\n\n") if speed.get("arms") else ()),
    ]


UNFINISHED = sorted(path.parent for path in (ROOT / "week16_fp8" / "results" / "unfinished").glob("*/run.json"))
WEEK16 = ROOT / "week16_fp8" / "results"


def test_there_are_records():
    assert RECORDS and all(tables(folder) for folder in RECORDS)


@pytest.mark.parametrize("folder", UNFINISHED, ids=lambda path: path.name)
def test_a_record_that_lacks_arms_is_quoted_as_unfinished(folder):
    text = (WEEK16 / "README.md").read_text()
    assert read_run(folder).status == "interrupted" and f"*{folder.name}:*" in text[text.index("## unfinished/") :]
    assert all(table in text for table in tables(folder))
    for file in folder.rglob("*.json*"):
        assert not re.search(r"/(home|root|tmp|Users|work)/|[\w.]+@[\w.]+\.\w+", file.read_text()), file
    run = read_run(folder).run
    assert any(arm not in read_run(folder).arms for arm in run["config"]["arms"])
    # The same command goes on with it, though the preset has learned better rates since.
    given = [f"train.{key}={run['config']['train'][key]}" for key in ("steps", "warmup_steps")]
    assert other_settings(folder, load_preset(run["config"]["name"], given)) == ""
    assert other_settings(folder, load_preset(run["config"]["name"], [*given, "train.lr=1e-3"])) == "train.lr"


@pytest.mark.skipif(not WEEK16.exists(), reason="week 16's results are not in this tree")
def test_weak_scaling_is_told_from_its_two_records():
    """One GPU from the speed record, two from the scaling record: the same work a GPU, and the shares of it."""
    from labkit.compare import scaling

    text = (WEEK16 / "README.md").read_text()
    one = read_run(WEEK16 / "2026-11-22-h200-speed").run["results"]["speed"]["arms"]
    both = scaling.rows_of(WEEK16 / "2026-11-22-h200-scaling")
    assert [row["arm"] for row in both] == ["bf16", "te-delayed"] and {row["ranks"] for row in both} == {2}
    for row in both:
        alone = one[row["arm"]]
        assert (alone["tokens_step"], alone["seq_len"]) == (row["tokens_step"], row["seq_len"])
        first = {
            "label": row["label"],
            "ranks": 1,
            "rate": alone["tokens_per_s"],
            "each": alone["tokens_per_s"],
            "share": 1.0,
            "step_ms": 1e3 * alone["step_p50"],
            "peak_gib": alone["memory"]["peak"] / 2**30,
        }
        for told in (first, {**row, "share": row["each"] / first["each"]}):
            assert "| " + " | ".join(scaling.cells(told)) + " |" in text
    waits = [
        rows["kernels"]["classes_ms"]
        for rows in (
            one["bf16"],
            read_run(WEEK16 / "2026-11-22-h200-scaling" / "2").run["results"]["speed"]["arms"]["bf16"],
        )
    ]
    assert f"communication {waits[1]['communication'] - waits[0]['communication']:.1f} (" in text


@pytest.mark.skipif(not WEEK16.exists(), reason="week 16's results are not in this tree")
def test_shares_over_equal_windows_are_told_as_recorded():
    text = " ".join((WEEK16 / "README.md").read_text().split())
    one, two = WEEK16 / "2026-11-22-h200-speed", WEEK16 / "2026-11-22-h200-scaling/2"
    share = [equal_windows(one, two, arm) for arm in ("bf16", "te-delayed")]
    assert f"train {share[0]:.1f} % in BF16 and {share[1]:.1f} % in FP8 of one" in text and max(share) < 99
    slower = []
    for arm in ("bf16", "te-delayed"):
        steps = seconds(one, arm)[: read_run(one).run["results"]["speed"]["arms"][arm]["steps"]]
        quarter = len(steps) // 4
        slower.append(100 * median(steps[3 * quarter : 4 * quarter]) / median(steps[:quarter]) - 100)
    assert f"by {slower[0]:.1f} % (BF16) and {slower[1]:.1f} % (delayed) from its first quarter" in text


@pytest.mark.skipif(not WEEK16.exists(), reason="week 16's results are not in this tree")
def test_four_gpus_are_told_as_recorded():
    from labkit.compare import scaling

    text = (WEEK16 / "README.md").read_text()
    words = " ".join(text.split())
    alone, bf16, fp8 = scaling.rows_of(WEEK16 / "2026-11-22-h200-scaling-4")
    assert [(row["arm"], row["ranks"]) for row in (alone, bf16, fp8)] == [("bf16", 1), ("bf16", 4), ("te-delayed", 4)]
    for row in (alone, bf16):
        assert "| " + " | ".join(scaling.cells(row)) + " |" in text
    cells = scaling.cells(fp8)
    assert "| " + " | ".join([*cells[:4], "", *cells[5:]]) + " |" in text  # alone, FP8 found no time
    runs = {n: read_run(WEEK16 / "2026-11-22-h200-scaling-4" / n).run["results"]["speed"]["arms"] for n in "14"}
    one, four = (runs[n]["bf16"]["kernels"]["classes_ms"] for n in "14")
    more = {name: four[name] - one[name] for name in four}
    assert f"A step takes {bf16['step_ms'] - alone['step_ms']:.1f} ms longer." in words
    assert f"products take {more['GEMM bf16']:.1f} ms longer and communication {more['communication']:.1f}" in words
    assert f"take {-more['norm and elementwise'] - more['optimizer']:.1f} less" in words
    hidden = [runs["4"][arm]["kernels"]["hidden_communication_ms"] for arm in ("bf16", "te-delayed")]
    scatter = [
        next(
            kernel["ms"]
            for kernel in read_run(run).run["results"]["speed"]["arms"]["bf16"]["kernels"]["top"]
            if "ReduceScatter" in kernel["name"]
        )
        for run in (
            WEEK16 / "2026-11-22-h200-scaling-4" / "4",
            *(WEEK16 / "2026-11-22-h200-scaling-levers" / name for name in ("kept", "ctas8")),
        )
    ]
    assert (
        f"reduce-scatters took {scatter[0]:.0f} ms in BF16, where the next host's take {scatter[1]:.0f} to "
        f"{scatter[2]:.0f}"
    ) in words
    assert f"messages travel for {hidden[0]:.0f} ms of a step in BF16, {hidden[1]:.0f} in FP8" in words
    lone = sorted(
        alone["each"] / read_run(WEEK16 / f"2026-11-2{name}").run["results"]["speed"]["arms"]["bf16"]["tokens_per_s"]
        for name in ("1-h200-hour", "2-h200-speed", "2-h200-whole")
    )
    assert f"was {100 * lone[0] - 100:.1f} to {100 * lone[-1] - 100:.1f} % faster than other hosts'" in words
    share = [
        equal_windows(WEEK16 / "2026-11-22-h200-whole", WEEK16 / "2026-11-22-h200-scaling-4/4", row["arm"])
        for row in (bf16, fp8)
    ]
    assert f"a GPU of four trains {share[0]:.1f} % in BF16 and {share[1]:.1f} % in FP8" in words


@pytest.mark.skipif(not WEEK16.exists(), reason="week 16's results are not in this tree")
def test_three_runs_of_the_speed_part_are_told_as_recorded():
    text = " ".join((WEEK16 / "README.md").read_text().split())
    runs = [
        read_run(WEEK16 / name).run["results"]["speed"]["arms"]
        for name in ("2026-11-21-h200-hour", "2026-11-22-h200-speed", "2026-11-22-h200-whole")
    ]
    bf16, fp8 = (sorted(run[arm]["tokens_per_s"] for run in runs) for arm in ("bf16", "te-delayed"))
    ratio = sorted(run["te-delayed"]["tokens_per_s"] / run["bf16"]["tokens_per_s"] for run in runs)
    assert (
        f"trains {bf16[0]:,.0f} to {bf16[-1]:,.0f} tokens/s, TE FP8 delayed {fp8[0]:,.0f} to {fp8[-1]:,.0f}; "
        f"the ratio is {ratio[0]:.3f} to {ratio[-1]:.3f}"
    ) in text
    assert f"Compiled BF16 trains {runs[2]['bf16']['tokens_per_s']:,.0f} tokens/s (73,000 asked for)" in text


@pytest.mark.skipif(not WEEK16.exists(), reason="week 16's results are not in this tree")
def test_what_is_said_of_8b_on_four_gpus_is_recorded():
    text = " ".join((WEEK16 / "README.md").read_text().split())
    arms = read_run(WEEK16 / "2026-11-22-h200-8b-4-gpus").run["results"]["speed"]["arms"]
    bf16, fp8 = arms["bf16"], arms["te-delayed"]
    assert (
        f"trains {bf16['tokens_per_s'] / 4:,.0f} tokens/s in BF16 and {fp8['tokens_per_s'] / 4:,.0f} in FP8, "
        f"{fp8['tokens_per_s'] / bf16['tokens_per_s']:.2f} times"
    ) in text
    assert f"{fp8['kernels']['classes_ms']['communication']:.1f} ms a step in which nothing but communication" in text
    copies = sum(
        kernel["ms"]
        for kernel in fp8["kernels"]["top"]
        if kernel["class"] == "communication" and "nccl" not in kernel["name"]
    )
    assert f"the copies that pack and unpack them ({copies:.0f} ms in all" in text


@pytest.mark.skipif(not WEEK16.exists(), reason="week 16's results are not in this tree")
def test_what_is_said_of_8b_on_two_gpus_is_recorded():
    text = (WEEK16 / "README.md").read_text()
    arms = read_run(WEEK16 / "2026-11-22-h200-8b-2-gpus").run["results"]["speed"]["arms"]
    rest, each, other = {}, {}, {}
    for name, arm in arms.items():
        told = arm["kernels"]["classes_ms"]
        other[name] = told["optimizer"] + told["communication"]
        rest[name], each[name] = 1e3 * arm["step_p50"] - other[name], arm["tokens_per_s"] / 2
    assert f"trains {each['bf16']:,.0f} tokens/s in BF16 and {each['te-delayed']:,.0f} in FP8" in text
    assert f"take {other['bf16']:.1f} and {other['te-delayed']:.1f} ms" in " ".join(text.split())
    assert f"FP8 would be {rest['bf16'] / rest['te-delayed']:.2f} times as fast" in text
    losses = [
        json.loads(line)["loss"]
        for line in (WEEK16 / "2026-11-22-h200-fp8-parameters/te-block-params/steps.jsonl").read_text().splitlines()
    ]
    assert f"{len(losses)} steps of the arm" in text
    assert f"from {losses[0]:.2f} to {losses[-1]:.2f}" in " ".join(text.split())


@pytest.mark.parametrize("folder", RECORDS, ids=lambda path: path.name)
def test_results_readme_quotes_the_record(folder):
    text = (folder.parent / "README.md").read_text()
    assert all(table in text for table in tables(folder))


@pytest.mark.parametrize("folder", RECORDS, ids=lambda path: path.name)
def test_a_record_is_whole_finished_and_private(folder):
    run = read_run(folder)
    assert run.status == "finished" and run.truncated == 0
    for arm in run.arms.values():
        assert arm.status == "finished" and len(arm.steps) == arm.run["config"]["steps"]
    for file in folder.rglob("*.json*"):
        found = re.search(r"/(home|root|tmp|Users|work)/|[\w.]+@[\w.]+\.\w+", file.read_text())
        assert not found, f"{file.relative_to(ROOT)} holds {found[0]!r}"


def test_the_time_of_lab_check_is_the_recorded_one():
    record = json.loads((ROOT / "results" / "2026-11-21-lab-check-week13.json").read_text())
    walls = [run["wall"] for run in record["runs"]]
    assert ", ".join(f"{wall:.2f}" for wall in walls) in (ROOT / "results" / "README.md").read_text()
    assert max(walls) < 20 and all(run["points"] == 80 for run in record["runs"])


def test_the_times_of_grade_load_are_the_recorded_ones():
    text = (ROOT / "results" / "README.md").read_text()
    for run in json.loads((ROOT / "results" / "2026-11-21-gradebook-load.json").read_text())["runs"]:
        assert f"| {run['students']:,} | {run['seconds']} | {run['seconds_again']} | {run['peak_MiB']} |" in text
        assert run["seconds"] < {300: 60, 1000: 240}[run["students"]]


def test_tables_in_the_main_readme_are_those_of_records():
    """Each arm row of README.md stands in a record's table, label and numbers."""
    rows = {" ".join(line.split()) for folder in RECORDS for table in tables(folder) for line in table.splitlines()}
    quoted = [
        line
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("|") and re.search(r"\d,\d{3}", line)
    ]
    assert quoted, "README.md quotes at least the demo's table"
    for line in quoted:
        assert " ".join(line.split()) in rows, line


def test_the_verdict_in_a_record_is_what_the_code_says_today():
    """A change of the statistic must not leave old verdicts standing."""
    from labkit.compare.preset import Preset
    from labkit.compare.results import heldout_of
    from labkit.compare.verdict import judge

    for folder in RECORDS:
        run = read_run(folder)
        preset = Preset.model_validate(run.run["config"])
        roles = {name: preset.arms[name].role for name in run.arms}
        told = judge(
            {name: heldout_of(arm) for name, arm in run.arms.items()},
            roles,
            {name: arm.label for name, arm in preset.arms.items()},
        )
        kept = run.run["results"]["verdict"]
        assert told["word"] == kept["word"], folder.name
        for name, arm in told["arms"].items():
            before = kept["arms"][name]
            assert arm["word"] == before["word"] and arm["gap"] == before["gap"], (folder.name, name)
            # Python 3.12 adds floats more exactly than 3.11: the last digit of a sum may differ.
            assert arm["value"] == pytest.approx(before["value"], rel=1e-12), (folder.name, name)


def record(name):
    return json.loads((ROOT / "results" / name).read_text())


def results_text():
    return (ROOT / "results" / "README.md").read_text()


def test_the_class_of_29_is_told_as_recorded():
    made, text = record("2026-11-22-grading-29.json"), results_text()
    theirs = made["nbgrader"]
    assert len(theirs["each"]) == 29
    assert f"| `nbgrader autograde` | {theirs['seconds']:.0f} | {theirs['machine_core_seconds']:.0f} |  |  |" in text
    for jobs, ours in made["grade_run"].items():
        times = made["times_faster"][jobs]
        assert len(ours["each"]) == 29 and times == round(theirs["seconds"] / ours["seconds"], 2)
        good = [one for name, one in ours["each"].items() if name.startswith("good")]
        assert len(good) == 12 and all(one["points"] == 80 for one in good)
        cores = [one["core_seconds"] for one in good]
        assert (
            f"| `grade run --jobs {jobs}` | {ours['seconds']:.0f} | {ours['machine_core_seconds']:.0f} | "
            f"{times:.1f} | {min(cores):.1f} to {max(cores):.1f} |"
        ) in text


def test_the_class_of_29_graded_again_is_told_as_recorded():
    made, before = record("2026-11-22-grading-29-again.json"), record("2026-11-22-grading-29.json")
    assert made["nbgrader"]["seconds"] == before["nbgrader"]["seconds"] and min(made["times_faster"].values()) >= 5
    cores = [
        one["core_seconds"]
        for ours in made["grade_run"].values()
        for name, one in ours["each"].items()
        if name.startswith("good")
    ]
    seconds = " and ".join(f"{ours['seconds']:.0f}" for ours in made["grade_run"].values())
    times = " and ".join(f"{times:.1f}" for times in made["times_faster"].values())
    assert len(cores) == 24 and max(cores) <= 4
    told = f"{seconds} s, {times} times, and a good submission {min(cores):.1f} to {max(cores):.1f} s of core time"
    assert told in " ".join(results_text().split())


def test_five_repeats_gave_the_same_intended_verdicts():
    made, text = record("2026-11-22-grading-verdicts.json"), results_text()
    assert made["unintended"] == made["changed between repeats"] == []
    assert made["repeats"] == 5 and made["load"] == 1 and f"{made['submissions'] - 2} mutants of week 13" in text


def test_the_graders_memory_at_a_thousand_is_told_as_recorded():
    made, text = record("2026-11-22-grading-1000.json"), results_text()
    assert made["submissions"] == made["marks"] == 1000 and made["status"] == 0
    assert max(step["mib"] for step in made["grown"]) <= made["peak_mib"] < 500
    assert f"At its peak the grader itself held {made['peak_mib']:.0f} MiB" in text
    assert f"the last one kept {made['marks_before']} marks" in text


def test_twenty_kills_lost_nothing():
    made = record("2026-11-21-grading-kills.json")
    killed = [run for run in made["runs"] if run["killed"]]
    assert made["marks_equal"] and made["last_status"] == 0 and made["marks"] == made["submissions"] == 29
    assert all(run["left_processes"] == 0 for run in made["runs"])
    assert all(run["marks_after"] >= run["marks_before"] for run in made["runs"])
    assert f"{len(killed)} of {len(made['runs'])}" in results_text()

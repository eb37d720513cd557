"""Every number that a README quotes comes from a committed record."""
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from labkit.record import speed_summary
from labkit.record.read import read_run
from labkit.record.summary import markdown

ROOT = Path(__file__).parents[1]
RECORDS = sorted(path.parent for folder in ("results", "week16_fp8/results")
                 for path in (ROOT / folder).glob("*/run.json"))


def tables(folder):
    """The Markdown tables of a record: losses, and speed if it measured that."""
    speed = read_run(folder).run["results"].get("speed")
    return [markdown(folder), *(speed_summary.markdown(speed).split("\n\n") if speed else ())]


def test_there_are_records():
    assert RECORDS


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
    quoted = [line for line in (ROOT / "README.md").read_text().splitlines()
              if line.startswith("|") and re.search(r"\d,\d{3}", line)]
    assert quoted, "README.md quotes at least the demo's table"
    for line in quoted:
        assert " ".join(line.split()) in rows, line


def test_the_verdict_in_a_record_is_what_the_code_says_today():
    """A change of the statistic must not leave old verdicts standing."""
    from labkit.record.arms import Preset
    from labkit.record.summary import heldout
    from labkit.record.verdict import judge
    for folder in RECORDS:
        run = read_run(folder)
        preset = Preset.model_validate(run.run["config"])
        roles = {name: preset.arms[name].role for name in run.arms}
        told = judge({name: heldout(arm) for name, arm in run.arms.items()}, roles,
                     {name: arm.label for name, arm in preset.arms.items()})
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
    made, text = record("2026-11-21-grading-29.json"), results_text()
    theirs = made["nbgrader"]
    assert len(theirs["each"]) == 29
    assert f"| `nbgrader autograde` | {theirs['seconds']:.0f} | {theirs['machine_core_seconds']:.0f} |  |  |" in text
    for jobs, ours in made["grade_run"].items():
        times = made["times_faster"][jobs]
        assert len(ours["each"]) == 29 and times == round(theirs["seconds"] / ours["seconds"], 2)
        good = [one for name, one in ours["each"].items() if name.startswith("good")]
        assert len(good) == 12 and all(one["points"] == 80 for one in good)
        cores = [one["core_seconds"] for one in good]
        assert (f"| `grade run --jobs {jobs}` | {ours['seconds']:.0f} | {ours['machine_core_seconds']:.0f} | "
                f"{times:.1f} | {min(cores):.1f} to {max(cores):.1f} |") in text


def test_twenty_kills_lost_nothing():
    made = record("2026-11-21-grading-kills.json")
    killed = [run for run in made["runs"] if run["killed"]]
    assert made["marks_equal"] and made["last_status"] == 0 and made["marks"] == made["submissions"] == 29
    assert all(run["left_processes"] == 0 for run in made["runs"])
    assert all(run["marks_after"] >= run["marks_before"] for run in made["runs"])
    assert f"{len(killed)} of {len(made['runs'])}" in results_text()

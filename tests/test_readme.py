"""What README.md shows is what happens."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.compare.preset import load_preset
from labkit.record.read import read_run

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RENTING = (ROOT / "labkit" / "RENTING.md").read_text(encoding="utf-8")


def test_the_first_experiment_prints_what_it_says(tmp_path):
    code = re.search(r"```python\n(.*?)```", TEXT, re.S)[1]
    said = re.search(r"four times (tensor\(.*?\))", code)[1]
    script = tmp_path / "hello.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.count(said) == 4, done.stdout + done.stderr


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert link.startswith("https://") or (ROOT / link).exists(), link
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", RENTING):
        assert link.startswith("https://") or (ROOT / "labkit" / link).exists(), link


def test_make_targets_and_lab_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake (\w+)", TEXT)):
        assert re.search(rf"^{target}:", makefile, re.M), f"make {target}"
    import typer

    from labkit.cli import app

    known = typer.main.get_command(app).commands
    for command in set(re.findall(r"\blab (\w+)\b", TEXT + RENTING)) - {"is"}:
        assert command in known, f"lab {command}"


def test_every_option_that_the_renters_page_names_exists():
    """In the lines a renter types: each `lab COMMAND --option` is one of that command's."""
    import typer

    from labkit.cli import app

    commands = typer.main.get_command(app).commands
    typed = [line.split(" #")[0] for line in (TEXT + RENTING).splitlines()]
    found = [
        (m[1], option)
        for line in typed
        for m in re.finditer(r"\b(?:lab|-m labkit) (\w+)\b([^`|]*)", line)
        for option in re.findall(r"(--[a-z][\w-]*)", m[2])
    ]
    known = {
        name: {
            opt for one in (command, *getattr(command, "commands", {}).values()) for p in one.params for opt in p.opts
        }
        for name, command in commands.items()
    }
    assert ("compare", "--detach") in found and ("bundle", "--check") in found
    for command, option in found:
        assert option in known[command], f"lab {command} {option}"


def test_predicted_minutes_are_what_the_code_predicts():
    from labkit.compare.budget import predict

    preset = load_preset("h100")
    for gib, gpu in ((140.4, "an H200"), (79.2, "an H100")):
        speed = sum(predict(preset, "speed", arm, gib).predicted for arm in preset.speed.arms) / 60
        safety = sum(predict(preset, "safety", arm, gib).predicted for arm in preset.arms) / 60
        told = f"{speed + safety:.0f} minutes for all of it on {gpu}", f"{speed + safety:.0f} on {gpu}"
        assert any(words in RENTING for words in told)
        if gpu == "an H200":
            own = sum(predict(preset, part, "week16", gib).predicted for part in ("speed", "safety")) / 60
            rest = speed + safety - own
            assert f"take {rest:.0f} minutes ({speed + safety:.0f} once" in TEXT
            assert f"{speed:.0f} for speed, {safety:.0f}\nfor safety" in RENTING
    own = sum(predict(preset, part, "week16", 140.4).predicted for part in ("speed", "safety")) / 60
    assert f"; {own:.0f} of them are for week 16's own FP8 linear" in RENTING


def test_what_the_pages_say_of_other_machines_is_recorded():
    results = ROOT / "week16_fp8" / "results"
    if not results.exists():
        pytest.skip("week 16's results are not in this tree")

    def rates(name, part="speed"):
        kept = json.loads((results / name / "run.json").read_text())["results"]
        rows = kept["speed"]["arms"] if part == "speed" else kept["arms"]
        return {arm: row["tokens_per_s"] for arm, row in rows.items() if "tokens_per_s" in row}

    whole = json.loads((results / "2026-11-22-h200-whole" / "run.json").read_text())
    kept, preset = whole["results"], whole["config"]["arms"]
    said = " ".join((TEXT + RENTING).split())
    gaps = {name: arm["value"] for name, arm in kept["verdict"]["arms"].items() if preset[name]["role"] == "candidate"}
    undecided = gaps.pop("te-delayed")
    assert kept["verdict"]["word"] == "no-power" and kept["verdict"]["arms"]["te-delayed"]["word"] == "undecided"
    assert len(gaps) == 4 and f"four recipes {min(gaps.values()):.3f} to {max(gaps.values()):.3f} % from BF16" in said
    assert f"TE FP8 delayed {undecided:.3f} %, so the verdict was" in said
    assert f"without scaling, {kept['verdict']['arms']['broken']['value']:.0f} % off, was rejected" in said
    before = [
        json.loads((results / name / "run.json").read_text())["results"]["verdict"]
        for name in ("2026-11-21-h200-hour", "unfinished/2026-11-22-h200-safety")
    ]
    assert [verdict["word"] for verdict in before] == ["pass", "pass"]
    assert (
        "it passed with {:.3f} and {:.3f} %".format(*(verdict["arms"]["te-delayed"]["value"] for verdict in before))
        in said
    )
    failed = json.loads((results / "unfinished/2026-11-22-h200-schedule/run.json").read_text())["results"]["verdict"]
    values = [failed["arms"][arm]["value"] for arm in ("te-delayed", "te-delayed-scheduled")]
    assert failed["word"] == "fail" and f"failed in a run of 150 steps, with {values[0]:.3f} %" in said
    assert f"both failed ({values[1]:.2f} and {values[0]:.2f} %, 150 steps;" in said
    small = rates("2026-11-22-h200-whole", "arms")
    assert f"was {small['te-delayed'] / small['bf16']:.2f} times as fast as compiled BF16" in said
    assert f"one of {kept['calls'][-1]['seconds'] / 60:.1f}; those were predicted" in said

    two = rates("2026-11-22-h200-8b-2-gpus")
    assert f"on two with one each {two['bf16'] / 2:,.0f} and {two['te-delayed'] / 2:,.0f}" in said
    whole = read_run(results / "2026-11-22-h200-whole")
    began, broken = (
        datetime.datetime.fromisoformat(run.run["started"].replace("Z", "+00:00"))
        for run in (whole, whole.arms["broken"])
    )
    assert f"{(broken - began).total_seconds() / 60:.1f} minutes up to that arm" in said


def test_predicted_memory_is_what_the_code_predicts():
    from labkit.compare import memory

    for name, gib, world in (("h100", 79.2, 1), ("h100", 140.4, 1), ("8b", 79.2, 8), ("8b", 140.4, 8)):
        told = memory.predict(load_preset(name).speed_config("bf16", gib, world), world)
        fixed = sum(told[k] for k in ("weights", "gradients", "optimizer"))
        row = (fixed, told["gathered"], told["activations"], told["logits"], told["peak"])
        assert f"| {' | '.join(f'{v / memory.GIB:.1f}' for v in row)} |" in RENTING, (name, gib)

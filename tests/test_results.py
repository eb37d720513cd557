"""The committed pages are what `lab results` makes of the committed records; the records are whole."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from labkit.compare import repeats
from labkit.compare.arms import heldout_of
from labkit.compare.pages import Page, templates
from labkit.compare.preset import Preset
from labkit.record.read import PACKED, read_run
from week16_fp8.given.one_run import judge

ROOT = Path(__file__).parents[1]
FOLDERS = [folder for folder in (ROOT / "results", *sorted(ROOT.glob("*/results"))) if folder.is_dir()]
COMPARISONS = sorted(file.parent for folder in FOLDERS for file in folder.rglob("run.json"))
JUDGED = [run for run in COMPARISONS if (read_run(run).results.get("verdict") or {}).get("arms")]
PRIVATE = re.compile(r"/(home|root|tmp|Users|work)/|[\w.]+@[\w.]+\.\w+|GPU-[0-9a-f]{8}|\x1b")


def name(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("template", templates(ROOT), ids=name)
def test_a_page_is_what_its_template_makes_of_the_records(template, tmp_path):
    page = Page(template, tmp_path)
    text = page.text()
    assert template.with_suffix("").read_text(encoding="utf-8") == text, "run `lab results`"
    for path in page.figures:  # its alt text was computed from the record; pixels depend on matplotlib's version
        with Image.open(path) as image:
            assert f"![{image.text['Description']}]({path.relative_to(template.parent)})" in text


def test_every_page_of_a_template_is_under_test():
    assert {name(path) for path in templates(ROOT)} >= {
        "README.md.j2",
        "docs/renters.md.j2",
        "results/README.md.j2",
        "week16_fp8/results/crossover/README.md.j2",
    }


@pytest.mark.parametrize("template", templates(ROOT), ids=name)
def test_a_templates_tables_hold_no_number_of_their_own(template):
    """In prose a number may be a target or a size; a cell of a table is measured. A table of settings or of others'
    reports says so in the line above it: {# by hand: why #}."""
    by_hand_from, before = False, ""
    for line in template.read_text(encoding="utf-8").splitlines():
        by_hand_from = line.startswith("|") and (by_hand_from or before.startswith("{# by hand: "))
        before = line
        if line.startswith("|") and not by_hand_from:
            by_hand = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|`[^`]*`|\(80 points\)|on \d ranks|BF16|H[12]00", "", line)
            assert not re.search(r"\d[\d,.]*\d|\b\d\b", by_hand), line


def test_every_page_has_a_template_and_every_picture_a_page():
    for folder in FOLDERS:
        for page in folder.rglob("*.md"):
            assert page.with_name(f"{page.name}.j2").exists(), name(page)
        shown = "".join(page.read_text(encoding="utf-8") for page in folder.rglob("*.md"))
        for picture in folder.rglob("*.png"):
            assert f"({picture.name})" in shown or f"(figures/{picture.name})" in shown, name(picture)
            assert picture.stat().st_size < 60_000, name(picture)


def test_results_stay_small():
    """Two weeks' records have 3.5 MB; weeks 14 and 15, which have one GPU record each, 0.3 MB more each."""
    files = [file for folder in FOLDERS for file in folder.rglob("*") if file.is_file()]
    assert len(files) < 200 and sum(file.stat().st_size for file in files) < 3_500_000 + 300_000 * 2
    assert not [file for file in files if file.name in ("steps.jsonl", "events.jsonl")], "lab results --pack"


def test_records_name_no_person_no_machine_and_no_folder():
    import gzip

    for folder in FOLDERS:
        for file in (file for file in folder.rglob("*") if file.is_file() and file.suffix != ".png"):
            data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            found = PRIVATE.search(data.decode("utf-8"))
            assert not found, f"{name(file)} holds {found[0]!r}"


@pytest.mark.parametrize("folder", COMPARISONS, ids=name)
def test_every_packed_arm_is_whole(folder):
    for file in [*folder.glob(f"arms/*{PACKED}"), *folder.glob(f"speed/*{PACKED}")]:
        run = read_run(file.parent / file.name.removesuffix(PACKED))
        assert run.truncated == 0 and run.run["kind"] == "train"
        if file.parent.name == "arms":
            assert run.status == "finished" and len(run.steps) == run.run["config"]["steps"]


@pytest.mark.parametrize("folder", JUDGED, ids=name)
def test_the_verdict_in_a_record_is_what_the_code_says_today(folder):
    """A change of the statistic must not leave old verdicts standing. A repeat keeps no steps: there the losses are
    made from the gaps at each evaluation, which the statistic stands on."""
    run = read_run(folder)
    configs, kept = run.config["arms"], run.results["verdict"]
    arms = [arm for arm, row in run.results["arms"].items() if row["status"] == "finished"]
    if run.arms:
        losses = {arm: heldout_of(run.arms[arm]) for arm in arms}
    else:
        longest = max((arm["gap"] for arm in kept["arms"].values()), key=len)
        base = {step: 10 / (1 + step / 100) for step, _ in longest}  # any that learns
        losses = {arm: {s: base[s] * (1 + gap / 100) for s, gap in entry["gap"]} for arm, entry in kept["arms"].items()}
        losses.setdefault(next(arm for arm in arms if configs[arm]["role"] == "baseline"), base)
    if run.config.get("repeat"):
        again = repeats.judge(losses, Preset.model_validate(run.config), kept["candidates"]).model_dump()
    else:  # a role of those days, "twin", is in no preset now
        again = judge(losses, {a: configs[a]["role"] for a in losses}, {a: one["label"] for a, one in configs.items()})
    assert again["word"] == kept["word"]
    for arm, now in again["arms"].items():
        # Python 3.12 adds floats more exactly than 3.11, and a loss made from its gap is rounded once more.
        assert now["word"] == kept["arms"][arm]["word"]
        for key in ("value", "low", "high"):
            then = kept["arms"][arm].get(key)
            assert now.get(key) == (None if then is None else pytest.approx(then, rel=1e-9))


def record(file):
    return json.loads((ROOT / "results" / file).read_text())


UNSHARED = "before answers were shared"


def test_what_the_words_say_of_grading_and_of_kills_is_in_the_records():
    """The pages' numbers are filled in; these are the claims beside them."""
    killed = record("2026-11-27-h100-killed.json")
    assert killed["each step once"] and killed["torchrun"] == 0 and [one["rank"] for one in killed["kills"]] == [0, 1]
    whole, cut = record("2026-11-29-h200-killed.json")["runs"]
    assert whole["each step once"] and whole["torchrun"] == 0 and "each step once" not in cut
    class_of_29 = record("2026-12-01-grading-29.json")
    # "Both are missed", and why
    assert class_of_29["times_faster"]["2"] < 5
    was, now = (class_of_29[UNSHARED]["ranks"][when] for when in ("before", "after"))
    cost = [sum(one["core_seconds"] for one in side["each"].values()) / side["ranks"] for side in (was, now)]
    assert now["ranks"] > 1.8 * was["ranks"] and abs(cost[1] / cost[0] - 1) < 0.1  # a rank costs what it did
    assert len(class_of_29["nbgrader"]["each"]) == 29
    for ours in class_of_29["grade_run"].values():
        full = {one for one, entry in ours["each"].items() if entry["points"] == 80}
        assert full == {one for one, kind in class_of_29["submissions"].items() if kind == "good"}
        assert max(ours["each"][one]["core_seconds"] for one in full) > 4
    verdicts = record("2026-11-22-grading-verdicts.json")
    assert verdicts["unintended"] == verdicts["changed between repeats"] == []
    class_of = record("2026-11-22-grading-1000.json")
    assert class_of["submissions"] == class_of["marks"] == 1000 and class_of["status"] == 0
    assert max(step["mib"] for step in class_of["grown"]) <= class_of["peak_mib"] < 500
    kills = record("2026-11-21-grading-kills.json")
    assert kills["marks_equal"] and kills["last_status"] == 0 and kills["marks"] == kills["submissions"] == 29
    assert all(run["left_processes"] == 0 for run in kills["runs"])
    assert all(run["marks_after"] >= run["marks_before"] for run in kills["runs"])


def test_what_the_words_say_of_the_gpu_check_is_in_its_record():
    results = read_run(ROOT / "results" / "2026-11-22-h200-gpu-check-124m").results
    rates = {arm: row["tokens_per_s"] for arm, row in results["arms"].items()}
    assert results["verdict"]["word"] == "no-power" and results["verdict"]["arms"]["broken"]["word"] == "outside"
    assert max(rate for arm, rate in rates.items() if arm not in ("bf16", "twin")) < min(rates["bf16"], rates["twin"])

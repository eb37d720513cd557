"""The verdict from repeated runs: each of its words, its two looks, its control, and which runs a preset has."""

import io
import math
from types import SimpleNamespace

import pytest
from rich.console import Console

from labkit.compare import compare, repeats, table
from labkit.compare.arms import answers, arm_rows
from labkit.compare.budget import Budget, spent
from labkit.compare.report import recommended
from labkit.compare.session import UNFINISHED, Session
from labkit.compare.speed import Control
from labkit.errors import LabError
from labkit.record.read import RunData, read_run
from tests.compare import comparing
from tests.compare.comparing import BASELINE, TINY, loaded

TEXT = f"""
title = "repeated"
{TINY}
steps = 100
eval_every = 10
[repeat]
baseline = 4
candidate = 2
more = 2
spread = {{ baseline = 0.064, candidate = 0.10, weight = 8 }}
{BASELINE}
[arms.a]
label = "FP8 a"
role = "candidate"
train.precision = {{ backend = "emulated" }}
[arms.b]
label = "FP8 b"
role = "candidate"
train.precision = {{ backend = "emulated" }}
{comparing.BROKEN}"""
STEPS = range(10, 101, 10)


def preset(folder, text=TEXT, *settings):
    return loaded(folder, text, *settings)


def losses(gap: float) -> dict[int, float]:
    """Held-out losses `gap` per cent from 6 - step / 100, at each evaluation."""
    return {step: (6 - step / 100) * math.exp(gap / 100) for step in STEPS}


BASE = {f"bf16{run}": losses(gap) for run, gap in (("", 0.0), ("-2", 0.06), ("-3", -0.06), ("-4", 0.0))}
BROKEN = {"broken": {step: loss for step, loss in losses(20).items() if step <= 20}}  # stopped


def runs(**gaps: tuple[float, ...]) -> dict[str, dict[int, float]]:
    """a=(0.1, 0.2): two runs of arm a."""
    return {f"{arm}-{i + 1}" if i else arm: losses(gap) for arm, shown in gaps.items() for i, gap in enumerate(shown)}


def verdict(tmp_path, heldout, requested=("a", "b"), **more):
    return repeats.judge({**BASE, **BROKEN, **heldout}, preset(tmp_path), requested, **more)


# ---- the words


def test_an_end_beyond_what_is_accepted_is_not_rounded_onto_it():
    shown = [repeats.interval(-0.06, low, 0.1) for low in (-0.25014, -0.25, -0.2549, -0.2551)]
    assert [one.partition("[")[2] for one in shown] == [f"{low}, +0.10]" for low in (-0.26, -0.25, -0.26, -0.26)]
    assert repeats.interval(0.0, -0.1, 0.2502) == "+0.00 % [-0.10, +0.26]"


def test_same_is_a_word_and_an_interval(tmp_path):
    out = verdict(tmp_path, runs(a=(0.02, 0.04), b=(-0.05, 0.05)))
    assert (out.word, out.judged, out.asked, out.from_step) == ("pass", 2, 2, 51)
    shown = out.arms["a"]
    assert shown.word == "same" and shown.low < 0.03 < shown.high < 0.25
    assert shown.value == pytest.approx(0.03)
    assert repeats.interval(shown.value, shown.low, shown.high) in out.sentence
    assert out.arms["broken"].word == "rejected" and "rejected at step 20: +22 % off" in out.sentence


def test_undecided_is_judged_again_with_more_runs_and_the_decided_one_is_not(tmp_path):
    two = runs(a=(0.1, 0.3), b=(0.0, 0.02))
    first = verdict(tmp_path, two)
    assert first.word == "undecided" and (first.arms["a"].word, first.arms["a"].look) == ("undecided", 1)

    def judged(of, arm):
        return of.arms[arm].model_copy(update={"gap": []})

    half_way = verdict(tmp_path, {**two, "a-3": losses(9.0)})
    assert judged(half_way, "a") == judged(first, "a"), "no glance between the looks"
    second = verdict(tmp_path, {**two, "a-3": losses(0.45), "a-4": losses(0.55)})
    assert (second.arms["a"].word, second.arms["a"].runs, second.arms["a"].look) == ("different", 4, 2)
    more = [" more " in arm.sentence for arm in (first.arms["a"], first.arms["b"], second.arms["a"])]
    assert more == [True, False, False]
    assert judged(second, "b") == judged(first, "b"), "who was decided stays so"
    given = preset(tmp_path)
    assert repeats.second_look({**BASE, **two}, given, "a-3", ("a", "b")) == "due"
    assert repeats.second_look({**BASE, **two}, given, "b-3", ("a", "b")) == "decided"
    del two["a-2"]
    assert repeats.second_look({**BASE, **two}, given, "a-3", ("a", "b")) == "waits"


def test_one_that_is_still_to_come_counts_and_keeps_the_verdict_open(tmp_path):
    out = verdict(tmp_path, runs(a=(0.02, 0.04), b=(0.0,)))
    assert (out.word, out.judged, out.asked) == ("incomplete", 1, 2) and out.arms["b"].word == ""
    alone = verdict(tmp_path, runs(a=(0.19, 0.19)), requested=("a",)).arms["a"]
    both = verdict(tmp_path, runs(a=(0.19, 0.19))).arms["a"]
    assert both.low == alone.low, "the interval is each recipe's own"
    cannot = verdict(tmp_path, runs(a=(0.02, 0.04)), missing={"b": "no GPU", "b-2": "no GPU"})
    timed = verdict(tmp_path, runs(a=(0.02, 0.04)), requested=("a",), missing={"b": "no GPU"})
    assert cannot.word == timed.word == "pass"
    assert {*cannot.reasons} - {*timed.reasons} == {"FP8 b: no result, no GPU."}, "of timed nobody asked for it"


def test_all_runs_of_the_baseline_are_needed(tmp_path):
    same, three = runs(a=(0.0, 0.0)), {run: losses for run, losses in BASE.items() if run != "bf16-4"}
    lost = {**BASE, "bf16-4": {**losses(0), 100: math.nan}}
    for base, why in ((three, "3 of 4 BF16 runs"), ({}, "no result"), (lost, "no finite")):
        assert why in repeats.judge({**BROKEN, **same, **base}, preset(tmp_path), ("a",)).sentence


def test_a_run_that_diverged_is_different(tmp_path):
    out = verdict(tmp_path, {**runs(a=(0.0,), b=(0.0, 0.0)), "a-2": {**losses(0), 100: math.inf}})
    assert out.word == "fail" and (out.arms["a"].word, out.arms["a"].value) == ("different", math.inf)
    assert out.arms["b"].word == "same"


def test_without_power_nothing_passes(tmp_path):
    same = {**BASE, **runs(a=(0.0, 0.0), b=(0.0, 0.0))}
    given = preset(tmp_path)
    missed = repeats.judge({**same, "broken": losses(0.05)}, given, ("a", "b"))
    assert missed.word == "no-power" and missed.arms["broken"].word == "not rejected"
    assert repeats.judge(same, given, ("a", "b")).word == "no-power", "no control ran"
    seen = repeats.judge({**same, "broken": losses(1.0)}, given, ("a", "b"))
    assert seen.word == "pass" and seen.arms["broken"].word == "rejected", "by the statistic, at its end"
    few = {run: {s: x for s, x in shown.items() if s > 60} for run, shown in {**same, "broken": losses(9)}.items()}
    assert "only 4 evaluations" in repeats.judge(few, given, ("a", "b")).sentence


# ---- the control


FINE = """
[arms.fine]
label = "all E5M2"
role = "fine"
train.precision = { backend = "broken-e5m2" }
"""


def test_a_fine_control_whose_first_run_failed_is_judged_by_the_others(tmp_path):
    """It ran out of memory beside another training, on a GPU; the comparison then ended in a KeyError."""
    given, sound = preset(tmp_path, TEXT + FINE), {**BASE, **BROKEN, **runs(a=(0.02, 0.04), b=(-0.05, 0.05))}
    out = repeats.judge({**sound, "fine-2": losses(0.6)}, given, ("a", "b"))
    shown = out.arms["fine-2"]
    assert shown.word == "different" and shown.runs == 1 and shown.value == pytest.approx(0.6)
    assert out.word == "pass" and "fine" not in out.arms
    both = repeats.judge({**sound, "fine": losses(0.5), "fine-2": losses(0.7)}, given, ("a", "b")).arms
    assert (both["fine"].runs, both["fine-2"].word) == (2, "") and both["fine"].value == pytest.approx(0.6)


@pytest.mark.parametrize(
    "control, base, at",
    [
        (losses(3), {}, 20),
        ({**losses(0), 30: 20.0}, {}, None),  # one is not enough
        ({10: 6.0, 20: math.nan, 30: math.nan}, {}, 30),
        (losses(2), {}, None),
        (losses(4), {"far": losses(2)}, None),  # 2 % from one of BF16's own runs
    ],
)
def test_a_gross_control_is_rejected_at_its_second_evaluation_beyond(control, base, at):
    found = repeats.rejected_at(control, [*BASE.values(), *base.values()])
    assert (found and found[0]) == at


def test_its_training_stops_there():
    history = SimpleNamespace(heldout={10: losses(20)[10]})
    control, loop = Control(list(BASE.values())), SimpleNamespace(stopped=None, history=history)
    control.after_eval(loop)
    assert loop.stopped is None
    loop.history.heldout[20] = losses(20)[20]
    control.after_eval(loop)
    assert loop.stopped == "rejected: +22 % from the baseline at step 20"


# ---- what a preset trains


def test_every_run_is_an_arm_with_weights_of_its_own(tmp_path):
    arms = preset(tmp_path).arms
    first = ["bf16", "bf16-2", "bf16-3", "bf16-4", "a", "a-2", "b", "b-2", "broken"]
    assert list(arms) == [*first, "a-3", "a-4", "b-3", "b-4"] and [arms[n].look for n in first] == [1] * 9
    seeds = [arms[name].train["perturb_seed"] for name in arms if name != "broken"]
    assert seeds[:4] == [0, 1, 2, 3] and not set(seeds[:4]) & set(seeds[4:])
    other = preset(tmp_path, TEXT, "repeat.seed=1").arms  # a comparison with another seed owes nothing to the first
    assert not set(seeds) & {other[name].train["perturb_seed"] for name in other if name != "broken"}
    configs = [preset(tmp_path).config(name) for name in ("a", "a-2", "a-4")]
    assert {config.perturb for config in configs} == {2.0**-9} and len({c.perturb_seed for c in configs}) == 3
    same = configs[0].replace(perturb_seed=7)
    assert all(config.replace(perturb_seed=7) == same for config in configs), "nothing else differs"


def test_another_training_has_no_records(tmp_path):
    """The spread is that of the preset's own training: without it a candidate needs three runs."""
    other = preset(tmp_path, TEXT, "train.steps=50")
    assert other.repeat.spread is None and (other.repeat.candidate, other.repeat.more) == (3, 3) and "a-6" in other.arms
    assert preset(tmp_path, TEXT, "arms.a.train.lr=1e-3").repeat.spread is None
    for kept in ("train.probe_every=5", "world_size=2"):
        assert preset(tmp_path, TEXT, kept).repeat.spread
    own = "repeat.spread={ baseline = 0.1, candidate = 0.2, weight = 4 }"
    assert preset(tmp_path, TEXT, "train.steps=50", own).repeat.spread.weight == 4


def test_what_nobody_judges_is_trained_only_by_name(tmp_path):
    text = TEXT.replace("more = 2", 'more = 2\njudged = ["b"]')
    given = preset(tmp_path, text)
    assert given.judged == ["b"] and "a" not in given.trained and {"bf16-4", "b-4", "broken"} <= set(given.trained)
    assert list(given.only(["a"]).arms) == ["a", "a-2", "a-3", "a-4"]
    with pytest.raises(LabError, match="judges 'x', which is no candidate; there are: a, b"):
        preset(tmp_path, TEXT.replace("more = 2", 'more = 2\njudged = ["x"]'))


# ---- the whole command, with trainings that cost nothing


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """`lab compare` on a preset of one's own, where an arm's training writes the losses that `gaps` names. Returns
    (call, names of the runs trained so far, the record)."""
    ran, toml = [], tmp_path / "micro.toml"
    preset(tmp_path)

    def train(session, item, *_):
        plan = session.plan
        ran.append(item.arm)
        if item.arm in call.failing:
            return "out of memory"
        shown = {**BASE, **BROKEN, **call.gaps}[item.arm]
        about = {"config": plan.config(item.part, item.arm), "world": {"size": 1}}
        comparing.training(tmp_path / "out" / "arms" / item.arm, shown, **about)
        return ""

    def call(budget=None, **words):
        said = io.StringIO()
        request = compare.Request(str(toml), out=tmp_path / "out", budget_minutes=budget, **words)
        status = compare.compare(request, Console(file=said, width=200))
        return status, said.getvalue()

    call.failing = ()
    monkeypatch.setattr(Session, "train", train)
    monkeypatch.setattr("labkit.compare.session.prepare_corpus", lambda *_: None)
    monkeypatch.setattr("labkit.compare.figures.draw_all", lambda data, folder=None, trouble=None: [])
    return call, ran, lambda: read_run(tmp_path / "out").comparison.results


def test_only_the_undecided_get_their_second_look(trained):
    call, ran, results = trained
    call.gaps = runs(a=(0.1, 0.3, 0.4, 0.5), b=(0.0, 0.02))
    status, said = call()
    assert ran == ["bf16", "bf16-2", "bf16-3", "bf16-4", "a", "a-2", "b", "b-2", "broken", "a-3", "a-4"]
    judged = results().verdict
    assert status == 1 and (judged.word, judged.judged, judged.arms["b"].word) == ("fail", 2, "same")
    assert judged.arms["a"].runs == 4 and "FP8 b, run 3: not needed" in said
    assert call()[0] == 1 and len(ran) == 11, "the same command shows it again"


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["bf16", "a", "fine", "broken"])
def test_a_first_run_that_failed_is_shown_and_tried_again_by_the_same_command(trained, tmp_path, first):
    call, ran, results = trained
    preset(tmp_path, TEXT + FINE)
    call.gaps, call.failing = runs(a=(0.02, 0.04), b=(0.0, 0.02), fine=(0.6, 0.7)), (first,)
    status, _ = call()
    shown, arm = results().verdict, results().arms[first]
    assert status == 1 and arm.status == "failed" and f"{arm.label}: failed, out of memory" in shown.reasons
    assert ran[-1] in ("broken", "fine-2"), "the others were trained"
    assert (tmp_path / "out" / "report.html").is_file()
    call.failing = ()
    ran.clear()
    status, _ = call()
    assert status == 0 and ran == [first] and results().verdict.word == "pass"


def test_what_would_decide_it_is_shown_with_its_price(trained):
    call, _, results = trained
    call.gaps = runs(a=(0.1, 0.3, 0.05, 0.25), b=(0.0, 0.02))
    status, said = call(price_per_hour=3.0)
    (shown,) = results().verdict.next
    needed = results().verdict.arms["a"].needed
    assert status == 1 and results().verdict.word == "undecided" and shown in said
    assert f"{2 * needed * 100:,} steps" in shown


def test_a_budget_that_ends_before_the_second_look_leaves_it(trained, monkeypatch):
    call, ran, results = trained
    call.gaps = runs(a=(0.1, 0.3, 0.4, 0.5), b=(0.0, 0.02))

    def fits(self, item):
        late = item.arm in ("a-3", "a-4")
        self.left += [item] * late
        return not late

    with monkeypatch.context() as patch:
        patch.setattr(Budget, "fits", fits)
        status, _ = call(60)
    assert status == UNFINISHED and "broken" in ran and results().verdict.word == "undecided"
    assert not {"a-3", "a-4"} & set(ran) and [item.arm for item in results().calls[-1].left] == ["a-3", "a-4"]
    assert call()[0] == 1 and ran[-2:] == ["a-3", "a-4"], "the same command goes on"


def test_an_arm_named_beside_those_of_the_preset_is_judged_with_them(trained, tmp_path):
    call, ran, results = trained
    preset(tmp_path, TEXT.replace("more = 2", 'more = 2\njudged = ["b"]'))
    call.gaps = runs(a=(0.6, 0.6), b=(0.0, 0.02))
    assert call()[0] == 0 and "a" not in ran and results().verdict.asked == 1
    assert call(arms=["a"])[0] == 1 and ran[-2:] == ["a", "a-2"] and results().verdict.asked == 2


# ---- both answers


def record(word="same", **rates) -> RunData:
    """A record with these rates, in which `a` was judged, and `b` was not."""
    roles = {"bf16": "baseline", "a": "candidate", "b": "candidate", "a-2": "repeat"}
    timed = {arm: {"label": arm, "role": roles[arm], "tokens_per_s": rate} for arm, rate in rates.items()}
    judged = {
        "bf16": {"word": "baseline", "runs": 4, "value": 0.0},
        "a": {"word": word, "runs": 2, "value": 0.03, "low": -0.05, "high": 0.11},
    }
    about = {arm: {"label": arm, "role": roles[arm], "status": "finished"} for arm in ("bf16", "a", "a-2")}
    results = {"speed": {"arms": timed}, "verdict": {"arms": judged, "from_step": 5}, "arms": about}
    calls = [{"seconds": 600.0, "ended": True, "price_per_hour": 3.0}]
    run = {"kind": "compare", "config": {"repeat": {"baseline": 4}}, "results": {**results, "calls": calls}}
    return RunData(path=None, run=run, steps=[], events=[], arms={})


def rows_of(data):
    return answers(arm_rows(data))


def test_the_fastest_recipe_whose_loss_is_the_same_is_recommended():
    rows = rows_of(record(bf16=100.0, a=130.0, b=140.0))
    columns = table.of_answers(rows, "BF16")
    assert [[column.cell(arm) for column in columns] for arm in rows] == [
        ["bf16", "1.00", "", "baseline", "4"],
        ["b", "1.40", "", "not judged", ""],
        ["a", "1.30", "+0.03 % [-0.05, +0.11]", "same", "2"],
    ]
    assert recommended(rows, "FP8", "BF16") == (
        "Recommended here: a, 1.30 times BF16's speed, the loss same (+0.03 % [-0.05, +0.11]). b is faster (1.40), its "
        "loss not judged."
    )
    assert spent(record().comparison.results.calls) == "10.0 minutes, 0.50 at 3.00 an hour"


@pytest.mark.parametrize(
    "word, rates, shown",
    [
        ("undecided", {"bf16": 100.0, "a": 130.0}, "BF16. No recipe that is faster has its loss"),
        ("same", {"bf16": 100.0, "a": 90.0}, "BF16. No FP8 recipe is faster."),
        ("same", {}, ""),  # one answer is missing
        ("", {"bf16": 100.0, "a": 140.0}, ""),
    ],
)
def test_bf16_is_recommended_where_no_recipe_pays(word, rates, shown):
    said = recommended(rows_of(record(word, **rates)), "FP8", "BF16")
    assert said.startswith(f"Recommended here: {shown}") if shown else said == ""

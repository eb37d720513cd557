"""What the pages say of the levers on four GPUs is what their records hold."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import pytest

from labkit.compare.memory import parameters
from labkit.model.config import sizes
from labkit.record.read import read_run
from tests.windows import clocks, equal_windows, lever_row, lone_row, of_lone, rate, row_of_8b, window_steps

ROOT = Path(__file__).parents[1]
WEEK16 = ROOT / "week16_fp8" / "results"
LEVERS, ONCE = WEEK16 / "2026-11-22-h200-scaling-levers", WEEK16 / "2026-11-22-h200-scaling-once"
BIG = WEEK16 / "2026-11-22-h200-8b-levers"
TOKENS = 20 * 4096
ARMS = ("bf16", "te-delayed")
pytestmark = pytest.mark.skipif(not WEEK16.exists(), reason="week 16's results are not in this tree")


def words(path=WEEK16 / "README.md"):
    return " ".join(path.read_text(encoding="utf-8").split())


def arms(run):
    return read_run(run).run["results"]["speed"]["arms"]


def milliseconds(run, arm, *classes):
    told = arms(run)[arm]["kernels"]["classes_ms"]
    return sum(told[name] for name in classes)


def windows(*runs):
    """Steps of each arm that all of these runs have in their window."""
    return {arm: min(window_steps(run, arm) for run in runs) for arm in ARMS}


FIRST, AGAIN = windows(*(LEVERS / name for name in ("as-it-is", "ctas8", "kept"))), windows(ONCE / "four")


def test_the_levers_table():
    text = (WEEK16 / "README.md").read_text(encoding="utf-8")
    for row in (
        lone_row(LEVERS, "each alone, at once", TOKENS, FIRST),
        lever_row(LEVERS / "as-it-is", "together, the preset as it is", TOKENS, FIRST),
        lever_row(LEVERS / "ctas8", "`NCCL_MAX_CTAS=8`", TOKENS, FIRST),
        lever_row(LEVERS / "kept", "`train.reshard_after_forward=false`", TOKENS, FIRST),
        lone_row(ONCE, "each alone, at once", 4 * TOKENS, AGAIN),
        lever_row(ONCE / "four", "together, reduced once a step", 4 * TOKENS, AGAIN),
    ):
        assert row in text, row
    told = words()
    assert f"over the first {FIRST['bf16']} steps of the window in BF16 and {FIRST['te-delayed']} in FP8" in told
    assert f"Medians of {AGAIN['bf16']} steps in BF16 and {AGAIN['te-delayed']} in FP8" in told


def test_the_levers_are_what_their_names_say():
    def config(run):
        return read_run(run / "speed" / "bf16").run["config"]

    def ctas(run):
        return read_run(run).run["versions"].get("NCCL_MAX_CTAS")

    three = [LEVERS / name for name in ("as-it-is", "ctas8", "kept")]
    assert [config(run)["reshard_after_forward"] for run in three] == [True, True, False]
    assert [ctas(run) for run in three] == [None, "8", None]
    for host, steps in ((LEVERS, 1), (ONCE, 4)):
        alone, together = config(host / "lone2"), config(host / ("kept" if host is LEVERS else "four"))
        assert alone["batch_size"] * 4 == together["batch_size"] == 80 * steps
        assert alone["accumulation"] == together["accumulation"] == steps
    assert config(ONCE / "four")["reduce_once"] and config(ONCE / "lone0")["reduce_once"]
    assert not config(ONCE / "four")["reshard_after_forward"]
    assert [ctas(BIG / name) for name in ("as-it-is", "ctas16")] == [None, "16"]
    assert [config(BIG / name)["reshard_after_forward"] for name in ("as-it-is", "kept")] == [True, False]


def test_where_the_time_goes_at_the_power_limit():
    """The profile is of rank 0 alone, so GPU 0 is held against itself."""
    text, lone = words(), LEVERS / "lone0"
    slower, given, waits, higher, lower = [], [], [], [], []
    for name in ("ctas8", "kept"):
        for arm in ARMS:
            products, rest = ("GEMM bf16", "GEMM fp8", "attention"), ("optimizer", "norm and elementwise")
            slower.append(100 * milliseconds(LEVERS / name, arm, *products) / milliseconds(lone, arm, *products) - 100)
            given.append(milliseconds(lone, arm, *rest) - milliseconds(LEVERS / name, arm, *rest))
            waits.append(milliseconds(LEVERS / name, arm, "communication"))
            alone, together = clocks(LEVERS, "lone0", arm), clocks(LEVERS, name, arm)
            higher.append(100 * alone[0] / together[0] - 100)
            lower.append(100 - 100 * mean(together) / mean(alone))
    lower.append(100 - 100 * mean(clocks(LEVERS, "as-it-is", "bf16")) / mean(clocks(LEVERS, "lone0", "bf16")))
    own = [milliseconds(LEVERS / f"lone{i}", arm, "communication") for i in range(4) for arm in ARMS]
    assert f"attention take {min(slower):.1f} to {max(slower):.1f} % longer" in text
    assert f"(alone it is {min(higher):.1f} to {max(higher):.1f} % higher)" in text
    assert f"give {min(given):.1f} to {max(given):.1f} ms of a step back" in text
    assert f"runs for {min(waits):.1f} to {max(waits):.1f} ms, {min(own):.1f} to {max(own):.1f} alone" in text
    assert min(lower) >= 2 and max(lower) <= 3 and "a clock that is 2 to 3 % lower" in text
    slowest = [min(range(4), key=lambda i: rate(LEVERS / f"lone{i}", arm, TOKENS, FIRST[arm])) for arm in ARMS]
    assert 0 in slowest and "GPU 0 is the slowest chip here" in text
    gained = {
        name: [
            of_lone(LEVERS / name, arm, FIRST[arm])[0] - of_lone(LEVERS / "as-it-is", arm, FIRST[arm])[0]
            for arm in ARMS
        ]
        for name in ("kept", "ctas8")
    }
    assert {f"{gain:.1f}" for gain in gained["kept"]} == {"1.1"} and "gave 1.1 points in both arms" in text
    assert "for NCCL {:.1f} and {:.1f}".format(*gained["ctas8"]) in text
    block, outside = parameters(sizes()["1b"])
    blocks = 16 * block  # gathered twice in BF16, once if kept; reduced in FP32; what is outside: once each
    saved = 100 * 2 * blocks / (8 * blocks + 6 * outside)
    assert f"gathers less, {saved:.0f} % of all bytes)" in text


def test_one_slow_chip():
    text = words()
    alone = clocks(ONCE, "lone0", "bf16")
    rates = [rate(ONCE / f"lone{i}", "bf16", 4 * TOKENS, AGAIN["bf16"]) for i in range(4)]
    others = [i for i in range(4) if i != 1]
    assert min(alone) == alone[1] and min(rates) == rates[1]
    mhz, fast = [alone[i] for i in others], [rates[i] for i in others]
    assert (
        f"GPU 1 reaches {alone[1]:,.0f} MHz alone where the other three have {min(mhz):,.0f} to {max(mhz):,.0f}, "
        f"trains {rates[1]:,.0f} tokens/s where they have {min(fast):,.0f} to {max(fast):,.0f}"
    ) in text
    first = [equal_windows(ONCE / "lone0", ONCE / "four", arm) for arm in ARMS]
    assert f"it is {first[0]:.1f} and {first[1]:.1f} %" in text
    shares = [of_lone(ONCE / "four", arm, AGAIN[arm]) for arm in ARMS]
    by_mean = [of_lone(ONCE / "four", arm, AGAIN[arm], mean)[0] for arm in ARMS]
    assert f"four together train {shares[0][1]:.1f} % in BF16 and {shares[1][1]:.1f} % in FP8" in text
    assert f"shares of the lone ones' mean are {by_mean[0]:.1f} and {by_mean[1]:.1f} %" in text
    assert by_mean[1] < 99 <= shares[1][0] and "reached in FP8, or missed by a tenth of a point" in text
    assert f"{99 - shares[0][0]:.1f}" == "0.5" and "missed by half a point in BF16" in text
    costs = []
    for arm in ARMS:
        each = [rate(ONCE / f"lone{i}", arm, 4 * TOKENS, AGAIN[arm]) for i in range(4)]
        costs.append(100 - 100 * min(each) / mean(each))
    assert f"whose slowest GPU alone costs {costs[0]:.1f} and {costs[1]:.1f}" in text
    assert f"for {milliseconds(ONCE / 'four', 'te-delayed', 'communication'):.1f} ms of a step)" in text
    saved = [
        milliseconds(ONCE / "lone0", arm, "optimizer", "norm and elementwise")
        - milliseconds(ONCE / "four", arm, "optimizer", "norm and elementwise")
        for arm in ARMS
    ]
    assert f"less the {min(saved):.0f} to {max(saved):.0f} ms a step" in text
    lonely = equal_windows(ONCE / "lone0", ONCE / "alone", "bf16")
    assert f"trained {lonely:.1f} % of what it trained beside three lone trainings (BF16, seven steps" in text
    lost = [100 - share for share in (first[0], shares[0][1])]
    told = f"held against GPU 0 the four lost {lost[0]:.1f} %, held against that one {lost[1]:.1f} % (BF16;"
    assert told in words(ROOT / "labkit" / "compare" / "scaling.py")


def test_the_renters_pages_tell_the_same():
    renting, front = words(ROOT / "labkit" / "RENTING.md"), words(ROOT / "README.md")
    rates = [rate(ONCE / f"lone{i}", "bf16", 4 * TOKENS, AGAIN["bf16"]) for i in range(4)]
    assert f"differ (on that other host by {100 - 100 * min(rates) / max(rates):.1f} %)" in renting

    def shares(run, which=0):
        told = FIRST if run.parent == LEVERS else AGAIN
        return tuple(of_lone(run, arm, told[arm])[which] for arm in ARMS)

    base, once = shares(LEVERS / "as-it-is"), shares(ONCE / "four")
    assert "{:.1f} in BF16, {:.1f} in FP8. What was tried".format(*base) in renting
    for run, rest in (
        (LEVERS / "as-it-is", " |"),
        (LEVERS / "kept", " |"),
        (LEVERS / "ctas8", " |"),
        (ONCE / "four", ";"),
    ):
        assert "| {:.1f} and {:.1f}".format(*shares(run)) + rest in renting, run.name
    assert "of the slowest GPU {:.1f} and {:.1f} |".format(*shares(ONCE / "four", 1)) in renting
    for name in ("as-it-is", "kept", "ctas16"):
        found = arms(BIG / name)
        assert "| {:,.0f} and {:,.0f} |".format(*(found[arm]["tokens_per_s"] / 4 for arm in ARMS)) in renting
    assert (
        "{:.1f} % in BF16 and {:.1f} % in FP8 on one host, ".format(*base)
        + "{:.1f} and {:.1f} % on another".format(*once)
        in front
    )


def test_8b_with_one_change_each():
    raw, text = (WEEK16 / "README.md").read_text(encoding="utf-8"), words()
    before = WEEK16 / "2026-11-22-h200-8b-4-gpus"
    for run, name in (
        (before, "the head in the root: the record above"),
        (BIG / "as-it-is", "the head apart, as it is now"),
        (BIG / "ctas16", "`NCCL_MAX_CTAS=16`"),
        (BIG / "kept", "`train.reshard_after_forward=false`"),
    ):
        assert row_of_8b(run, name) in raw
    less = [
        milliseconds(before, arm, "communication") - milliseconds(BIG / "as-it-is", arm, "communication")
        for arm in ARMS
    ]
    assert f"Nothing but messages ran for {less[0]:.1f} and {less[1]:.1f} ms less" in text
    scatter = [
        next(kernel["ms"] for kernel in arms(run)["bf16"]["kernels"]["top"] if "ReduceScatter" in kernel["name"])
        for run in (BIG / "as-it-is", before)
    ]
    assert f"reduce-scatters took {scatter[0]:.0f} ms of a step instead of {scatter[1]:.0f} in BF16" in text
    base, kept = arms(BIG / "as-it-is"), arms(BIG / "kept")
    gain = [100 * kept[arm]["tokens_per_s"] / base[arm]["tokens_per_s"] - 100 for arm in ARMS]
    more = {round((kept[arm]["memory"]["peak"] - base[arm]["memory"]["peak"]) / 2**30) for arm in ARMS}
    assert f"give {gain[0]:.1f} % in BF16 and {gain[1]:.1f} % in FP8, for {more.pop()} GiB" in text and not more
    rates = [[run[arm]["tokens_per_s"] / 4 for arm in ARMS] for run in (base, kept)]
    (base_bf16, base_fp8), (kept_bf16, best) = rates
    assert f"**{best:,.0f} tokens/s a GPU and {best / kept_bf16:.2f} times BF16 is the best" in text
    assert f"goal of 15,400 is missed by {100 - best / 154:.1f} %" in text
    step, update = 1e3 * kept["te-delayed"]["step_p50"], milliseconds(BIG / "kept", "te-delayed", "optimizer")
    assert f"({update:.0f} ms of a step) would make it {best * step / (step - update / 2):,.0f}, computed" in text
    assert read_run(BIG / "three").status == "failed"
    assert all("OutOfMemory" in (BIG / "three" / "speed" / arm / "events.jsonl").read_text() for arm in ARMS)
    renting, front = words(ROOT / "labkit" / "RENTING.md"), words(ROOT / "README.md")
    assert f"{base_bf16:,.0f} tokens/s a GPU in BF16, {base_fp8:,.0f} in FP8" in renting
    assert (f"{base_fp8:,.0f} tokens/s a GPU in FP8, {base_fp8 / base_bf16:.2f} times BF16; {best:,.0f} with") in front
    preset = (ROOT / "labkit" / "compare" / "presets" / "8b.toml").read_text()
    assert f"(4 GPUs: {gain[0]:.1f} % in BF16, {gain[1]:.1f} % in FP8)" in preset


def test_nested_records_name_no_machine_and_no_folder():
    for file in sorted(WEEK16.rglob("*.json*")):
        found = re.search(r"/(home|root|tmp|Users|work)/|[\w.]+@[\w.]+\.\w+", file.read_text(encoding="utf-8"))
        assert not found, f"{file.relative_to(ROOT)} holds {found[0]!r}"

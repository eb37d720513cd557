"""What the pages say of the levers on four GPUs is what their records hold."""
from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import pytest

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


def test_the_levers_table():
    text = (WEEK16 / "README.md").read_text(encoding="utf-8")
    for row in (lone_row(LEVERS, "each alone, at once", TOKENS),
                lever_row(LEVERS / "as-it-is", "together, the preset as it is", TOKENS),
                lever_row(LEVERS / "ctas8", "`NCCL_MAX_CTAS=8`", TOKENS),
                lever_row(LEVERS / "kept", "`train.reshard_after_forward=false`", TOKENS),
                lone_row(ONCE, "each alone, at once", 4 * TOKENS),
                lever_row(ONCE / "four", "together, reduced once a step", 4 * TOKENS)):
        assert row in text, row


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
    text, together = words(), (LEVERS / "ctas8", LEVERS / "kept")
    lone = [LEVERS / f"lone{i}" for i in range(4)]
    slower, given, waits = [], [], []
    for arm in ARMS:
        for run in together:
            products, rest = ("GEMM bf16", "GEMM fp8", "attention"), ("optimizer", "norm and elementwise")
            slower.append(100 * milliseconds(run, arm, *products)
                          / mean(milliseconds(one, arm, *products) for one in lone) - 100)
            given.append(mean(milliseconds(one, arm, *rest) for one in lone) - milliseconds(run, arm, *rest))
            waits.append(milliseconds(run, arm, "communication"))
    own = [milliseconds(one, arm, "communication") for one in lone for arm in ARMS]
    assert f"attention take {min(slower):.1f} to {max(slower):.1f} % longer" in text
    assert f"give {min(given):.1f} to {max(given):.1f} ms back" in text
    assert f"runs for {min(waits):.1f} to {max(waits):.1f} ms a step, {min(own):.1f} to {max(own):.1f} alone" in text
    lower = [100 - 100 * mean(clocks(LEVERS, name, arm)) / mean(clocks(LEVERS, "lone0", arm))
             for name, arm in (("as-it-is", "bf16"), ("ctas8", "bf16"), ("kept", "bf16"), ("ctas8", "te-delayed"),
                               ("kept", "te-delayed"))]
    assert f"a clock that is {min(lower):.1f} to {max(lower):.1f} % lower" in text
    cut = window_steps(LEVERS / "as-it-is", "te-delayed")
    assert f"cut off in FP8's window, after {cut} steps of it" in text


def test_one_slow_chip():
    text = words()
    alone, rates = clocks(ONCE, "lone0", "bf16"), [rate(ONCE / f"lone{i}", "bf16", 4 * TOKENS) for i in range(4)]
    others = [i for i in range(4) if i != 1]
    assert min(alone) == alone[1] and min(rates) == rates[1]
    mhz, fast = [alone[i] for i in others], [rates[i] for i in others]
    assert (f"GPU 1 reaches {alone[1]:,.0f} MHz alone where the other three have {min(mhz):,.0f} to {max(mhz):,.0f}, "
            f"trains {rates[1]:,.0f} tokens/s where they have {min(fast):,.0f} to {max(fast):,.0f}") in text
    first = [equal_windows(ONCE / "lone0", ONCE / "four", arm) for arm in ARMS]
    assert f"it is {first[0]:.1f} and {first[1]:.1f} %" in text
    shares = [of_lone(ONCE / "four", arm) for arm in ARMS]
    lost = [100 - share for share in (first[0], shares[0][1])]
    told = f"held against GPU 0 the four lost {lost[0]:.1f} %, held against that one {lost[1]:.1f} % (BF16;"
    assert told in words(ROOT / "labkit" / "record" / "scaling_each.py")
    assert f"four together train {shares[0][1]:.1f} % in BF16 and {shares[1][1]:.1f} % in FP8" in text
    assert shares[0][0] < 99 <= shares[1][0], "missed in BF16, met in FP8"
    lonely = equal_windows(ONCE / "lone0", ONCE / "alone", "bf16")
    assert f"trained {lonely:.1f} % of what it trained beside three lone trainings (BF16, seven steps" in text
    renting = words(ROOT / "labkit" / "RENTING.md")
    assert f"differ (there by {100 - 100 * min(rates) / max(rates):.1f} %)" in renting
    for run, told in ((LEVERS / "as-it-is", "{:.1f} % in BF16, {:.1f} % in FP8 of what"),
                      (LEVERS / "kept", "1B: {:.1f} and {:.1f} %."),
                      (LEVERS / "ctas8", "1B: {:.1f} and {:.1f} % |"), (ONCE / "four", "1B: {:.1f} and {:.1f} %;")):
        assert told.format(*(of_lone(run, arm)[0] for arm in ARMS)) in renting, run.name
    assert "{:.1f} and {:.1f} % of the slowest GPU".format(*(share[1] for share in shares)) in renting
    front = words(ROOT / "README.md")
    assert {f"{of_lone(LEVERS / 'as-it-is', arm)[0]:.0f}" for arm in ARMS} == {"97"} and "on four: 97 %" in front
    assert f"{shares[1][0]:.0f} % in FP8 once a step has four" in front


def test_8b_with_one_change_each():
    raw, text = (WEEK16 / "README.md").read_text(encoding="utf-8"), words()
    before = WEEK16 / "2026-11-22-h200-8b-4-gpus"
    for run, name in ((before, "the head in the root: the record above"),
                      (BIG / "as-it-is", "the head apart, as it is now"), (BIG / "ctas16", "`NCCL_MAX_CTAS=16`"),
                      (BIG / "kept", "`train.reshard_after_forward=false`")):
        assert row_of_8b(run, name) in raw
    shown = [[milliseconds(run, arm, "communication") for arm in ARMS] for run in (before, BIG / "as-it-is")]
    out = [old - new for old, new in zip(*shown)]
    assert f"took {out[0]:.1f} and {out[1]:.1f} ms out of the open" in text
    products = [milliseconds(before, arm, kind) - milliseconds(BIG / "as-it-is", arm, kind)
                for arm, kind in zip(ARMS, ("GEMM bf16", "GEMM fp8"))]
    assert f"differ by {products[0]:.0f} and {products[1]:.0f} ms" in text
    base, kept = arms(BIG / "as-it-is"), arms(BIG / "kept")
    gain = [100 * kept[arm]["tokens_per_s"] / base[arm]["tokens_per_s"] - 100 for arm in ARMS]
    more = {round((kept[arm]["memory"]["peak"] - base[arm]["memory"]["peak"]) / 2 ** 30) for arm in ARMS}
    assert f"give {gain[0]:.1f} % in BF16 and {gain[1]:.1f} % in FP8, for {more.pop()} GiB" in text and not more
    rates = [[run[arm]["tokens_per_s"] / 4 for arm in ARMS] for run in (base, kept)]
    (base_bf16, base_fp8), (kept_bf16, best) = rates
    assert f"**{best:,.0f} tokens/s a GPU and {best / kept_bf16:.2f} times BF16 is the best" in text
    assert f"goal of 15,400 is missed by {100 - best / 154:.1f} %" in text
    assert read_run(BIG / "three").status == "failed"
    assert all("OutOfMemory" in (BIG / "three" / "speed" / arm / "events.jsonl").read_text() for arm in ARMS)
    renting, front = words(ROOT / "labkit" / "RENTING.md"), words(ROOT / "README.md")
    assert f"{base_bf16:,.0f} tokens/s a GPU in BF16, {base_fp8:,.0f} in FP8" in renting
    assert f"8B: {kept_bf16:,.0f} and {best:,.0f} tokens/s a GPU" in renting
    assert (f"{base_fp8:,.0f} tokens/s a GPU in FP8, {base_fp8 / base_bf16:.2f} times BF16; {best:,.0f} with") in front
    told = f"messages alone ran for {shown[1][1]:.0f} ms of a step instead of {shown[0][1]:.0f}"
    assert told in words(ROOT / "labkit/train/shard.py")
    preset = (ROOT / "labkit" / "presets" / "8b.toml").read_text()
    assert f"(4 GPUs: {gain[0]:.1f} % in BF16, {gain[1]:.1f} % in FP8)" in preset


def test_nested_records_name_no_machine_and_no_folder():
    for file in sorted(WEEK16.rglob("*.json*")):
        found = re.search(r"/(home|root|tmp|Users|work)/|[\w.]+@[\w.]+\.\w+", file.read_text(encoding="utf-8"))
        assert not found, f"{file.relative_to(ROOT)} holds {found[0]!r}"

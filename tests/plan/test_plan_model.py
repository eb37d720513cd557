"""The formulas: what must follow from what, on cases with one thing changed."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from labkit.plan.cases import Cases
from labkit.plan.constants import DATA, WIDTHS, Constants, accuracy, constants
from labkit.plan.footprint import GIB, LEAN, PLAIN, memory, room
from labkit.plan.machine import CHIPS, columns_of, find_chip
from labkit.plan.rows import number, read, runs
from labkit.plan.step import step
from labkit.plan.work import product
from week15_tp_attention.pipeline import bubble

ROOT = Path(__file__).parents[2]
COMPUTING = ("gemm", "attention", "elementwise", "casts", "optimizer")
SHOWN, OWN = read(DATA / "shown.csv"), read(DATA / "own.csv")
LINKS = ("intra_bw_GBps_per_gpu_unidir", "inter_bw_GBps_per_gpu")


def row(name: str, **changes) -> dict[str, str]:
    found = next(one for one in SHOWN + OWN if one["id"] == name)
    return {**found, **{key: str(value) for key, value in changes.items()}}


def one(name: str, **changes) -> Cases:
    return runs([row(name, **changes)]).cases


def parts(c: Cases) -> dict[str, float]:
    return {key: float(value[0]) for key, value in step(c, constants())._asdict().items()}


def predicted(rows) -> dict[str, tuple[float, ...]]:
    found = runs(rows)
    spread = found.spread(step(found.cases, constants()).total)
    return {each["id"]: tuple(float(column[i]) for column in spread) for i, each in enumerate(found.rows)}


def test_names_and_order_do_not_matter():
    before = predicted(SHOWN)
    hidden = ("framework", "system", "notes", "source", "model", "sweep_group", "split")
    turned = [dict(reversed([(k, "renamed" if k in hidden else v) for k, v in each.items()])) for each in SHOWN[::-1]]
    assert predicted(turned) == before


@pytest.mark.parametrize("name", ["vtrain-3.6B-64-t16d4p1m8", "dgxc-l70b-bf16-64", "bs181-tp8pp6mbs4"])
def test_messages_follow_the_bandwidths_and_computing_does_not(name):
    half = {key: float(row(name)[key]) / 2 for key in LINKS}
    before, after = parts(one(name)), parts(one(name, **half))
    for key in COMPUTING:
        assert after[key] == before[key]
    for key in ("tensor", "pipeline"):
        if before[key]:  # twice as long, less the alphas
            assert 1.7 * before[key] < after[key] <= 2 * before[key]
    assert after["data"] > before["data"]


def test_a_ring_of_ranks_on_two_nodes_waits_for_their_cards():
    speeds = (12.5, 6.25, 3.125)
    of = [parts(one("vtrain-3.6B-64-t16d4p1m8", inter_bw_GBps_per_gpu=bw))["tensor"] for bw in speeds]
    inside = [parts(one("vtrain-3.6B-64-t8d8p1m8", inter_bw_GBps_per_gpu=bw))["tensor"] for bw in speeds]
    assert of[2] - of[1] == pytest.approx(2 * (of[1] - of[0]))  # NVLink's part stays
    assert of[1] - of[0] > 0.7 * of[0]
    slower = one("vtrain-3.6B-64-t16d4p1m8", inter_bw_GBps_per_gpu=12.5, intra_bw_GBps_per_gpu_unidir=200)
    assert 1.02 * of[0] < parts(slower)["tensor"] < 1.2 * of[0]  # it is there, and mostly hidden
    assert len(set(inside)) == 1


@pytest.mark.parametrize("pp, gbs", [(2, 16), (4, 16), (8, 64)])
def test_the_bubble_is_week_15s(pp, gbs):
    """With free messages and no head, a stage stands idle (P-1)/(M+P-1) of the time; interleaved vp times, less so."""
    free = dict.fromkeys(LINKS, 1000000000.0)
    plan = dict(tp=1, sp=0, pp=pp, vp=1, cp=1, dp=1, gpus=pp, gbs=gbs, mbs=1, layers=64, vocab=8, zero=0, **free)
    of = parts(one("dgxc-gpt175b-bf16-128", **plan))
    busy = of["gemm"] + of["attention"] + of["elementwise"]
    # pipeline messages' alphas and the tiny head are what is left
    assert of["bubble"] / (busy + of["bubble"]) == pytest.approx(bubble(pp, gbs), rel=2e-3)
    twice = parts(one("dgxc-gpt175b-bf16-128", **{**plan, "vp": 2}))
    assert twice["bubble"] == pytest.approx(of["bubble"] / 2, rel=1e-2)


def test_a_tile_more_than_a_wave_costs_a_wave():
    c, k, none = one("dgxc-l8b-bf16-8"), constants(), np.zeros(1)
    rows = 128 * int(c.sms[0]) // 4  # with 1024 columns: one tile of 128 x 256 for each multiprocessor
    whole, more, twice = (float(product(c, k, (none + m, none + 1024, none + 8192))[0]) for m in
                          (rows, rows + 8, 2 * rows))  # fmt: skip
    assert more > 1.2 * whole
    assert twice == pytest.approx(2 * whole, rel=1e-6)


def test_a_side_that_is_no_multiple_of_eight_is_slow():
    c, k, none = one("dgxc-l8b-bf16-8"), constants(), np.zeros(1)
    even, *odd = (product(c, k, tuple(none + side for side in shape))[0] for shape in
                  ((8192, 4096, 8192), (8190, 4096, 8192), (8192, 4090, 8192), (8192, 4096, 8190)))  # fmt: skip
    assert min(odd) > 1.5 * even


def test_recomputing_costs_a_forward_and_saves_activations():
    none, full = (one("dgxc-l70b-bf16-64", recompute=word) for word in ("none", "full"))
    a, b = parts(none), parts(full)
    assert 1.25 < b["gemm"] / a["gemm"] <= 4 / 3  # the head is not computed again
    assert b["tensor"] == pytest.approx(1.5 * a["tensor"])
    assert memory(full).activations[0] < 0.35 * memory(none).activations[0]


def test_overlap_and_zero_do_what_they_are_for():
    rows = {key: one("bs181-tp8pp6mbs4", zero=1, dp_overlap=key) for key in ("no", "yes")}
    assert parts(rows["yes"])["data"] < parts(rows["no"])["data"]
    sizes = [memory(one("nanotron-8.86B-8n", zero=stage, pp=1, dp=64)) for stage in (0, 1, 2, 3)]
    totals = [float(size.total[0]) for size in sizes]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 4
    assert sizes[1].optimizer[0] == pytest.approx(sizes[0].optimizer[0] / 64)


def test_context_parallelism_costs_what_its_ring_costs():
    """Twice the ranks of a ring, half the ranks of data parallelism, twice the sequences a micro-batch: the same
    products on every rank. What is left is the ring, and it is never free: hidden hops drag, and chunks are merged."""

    def ring(cp, **more):
        return parts(one("dgxc-l8b-bf16-8", cp=cp, dp=64 // cp, gpus=64, mbs=cp, gbs=512, **more))

    added = [ring(cp)["context"] for cp in (1, 2, 4, 8)]
    assert added[0] == 0 < added[1] < added[2] / 1.5 < added[3] / 2
    assert ring(2)["gemm"] == pytest.approx(ring(4)["gemm"], rel=1e-3)
    assert ring(4)["data"] == pytest.approx(ring(1)["data"])  # gradients are summed over both
    c = one("dgxc-l8b-bf16-8", cp=4, dp=16, gpus=64, mbs=4, gbs=512)
    no_drag = float(step(c, constants()._replace(drag=0)).context[0])
    assert 0 < no_drag < 0.8 * added[2]  # chunks merged and the last hop home, and then what hidden hops cost
    # a ring that leaves the node goes at the pace of one network card, and shorter chunks no longer hide its hops
    fast, slow = (ring(16, inter_bw_GBps_per_gpu=bw)["context"] for bw in (50, 25))
    assert slow > 1.5 * fast > 3 * added[3]
    assert ring(8, inter_bw_GBps_per_gpu=25)["context"] == added[3]
    # backward's messages are twice forward's; all of it again where activations are computed again
    none, full = (ring(16, inter_bw_GBps_per_gpu=6.25, recompute=word)["context"] for word in ("none", "full"))
    assert full == pytest.approx(4 / 3 * none, rel=0.05)


def test_fp8_halves_products_and_pays_for_casts():
    before, after = parts(one("dgxc-gpt175b-bf16-128")), parts(one("dgxc-gpt175b-fp8-128"))
    assert 0.5 <= after["gemm"] / before["gemm"] < 0.56  # the head stays BF16, and starts of tiles are no shorter
    assert before["casts"] == 0 < after["casts"]


@pytest.mark.parametrize("field", sorted(set(SHOWN[0]) - {"id", "layers", "hidden", "gpus", "gbs"}))
def test_a_blank_widens_and_never_fails(field):
    """Of every kind of row, each field in turn: a prediction is there, and holds the interval that it had where the
    blank may have been what it was."""
    rows = [SHOWN[i] for i in (0, 4, 20, 32, 38)]
    whole = predicted(rows)
    for said in ("", "?"):
        blank = predicted([{**each, field: said} for each in rows])
        assert len(blank) == len(rows)
        for name, (mean, low, high) in blank.items():
            assert 0 < low <= mean <= high < np.inf
            if field in ("zero", "recompute", "attn", "tp_overlap", "dp_overlap", "inter_bw_GBps_per_gpu", "mbs"):
                assert high / low >= whole[name][2] / whole[name][1] * (1 - 1e-9)


def test_a_choice_is_tried_both_ways():
    assert sorted(one("bs181-tp8pp6mbs4", zero="1/3?", pp=1, dp=8).zero.tolist()) == [1, 3]


def test_several_wrong_fields_at_once_fail_nothing():
    """Whatever stands in ten fields of a row, it is predicted by finite numbers or left out with a sentence."""
    rng, wrong = random.Random(1), ("", "?", "0", "-1", "nan", "inf", "abc", "0/1?", "1e9", "yes", "none")
    rows = [dict(rng.choice(SHOWN)) for _ in range(100)]
    for each in rows:
        each.update({field: rng.choice(wrong) for field in rng.sample(sorted(each), rng.choice((1, 3, 10)))})
    found = runs(rows)
    seconds = found.spread(step(found.cases, constants()).total)[0]
    assert np.all(np.isfinite(seconds) & (seconds > 0)) and np.all(np.isfinite(memory(found.cases).total))
    assert len(found.rows) + len(found.left_out) == len(rows) and len(found.rows) > 50


def test_a_row_of_which_nothing_is_known_is_shown_and_the_others_stay():
    lost = {**SHOWN[0], "id": "lost", "hidden": "?"}
    found = runs([lost, SHOWN[1]])
    assert [each["id"] for each in found.rows] == ["korth-22B-selective"]
    assert len(found.left_out) == 1 and "lost: hidden must be" in found.left_out[0]


def test_own_runs_are_what_the_records_say():
    for each in OWN:
        if each["fits"] == "no":
            run = json.loads((ROOT / each["source"] / "run.json").read_text())
            assert run["status"] == "failed" and run["config"]["speed"]["batch_by_memory"] == {"130": int(each["mbs"])}
        elif (folder := ROOT / each["source"]).is_dir():
            arm = json.loads((folder / "run.json").read_text())["results"]["speed"]["arms"][each["notes"]]
            assert number(each, "step_s") == pytest.approx(arm["step_p50"], abs=1e-5)
            assert number(each, "mem_gib") == pytest.approx(arm["memory"]["peak"] / GIB, abs=0.01)
            assert [arm["ranks"], arm["batch"], arm["seq_len"]] == [int(each[key]) for key in ("gpus", "gbs", "seq")]
        else:
            assert number(each, "step_s" if each["step_s"] else "mem_gib") == pytest.approx(
                EAGER[each["id"]](), rel=1e-3
            )


def _week14() -> dict:
    return json.loads((ROOT / "week14_fsdp/results/h200-2.json").read_text())["parts"]


def _strong() -> float:
    runs_ = {each["kind"]: each for each in _week14()["scaling"]["fsdp2"]}
    return float(np.median(runs_["strong"]["step_seconds"]))


EAGER = {
    "own-1b-2-eager": lambda: float(np.median(_week14()["fsdp"]["fsdp2"]["step_seconds"])),
    "own-1b-2-eager-strong": _strong,
    "own-1b-2-ddp": lambda: float(np.median(_week14()["ddp"]["torch-ddp"]["step_seconds"])),
    "own-8b-2-eager": lambda: max(each["step"] for each in _week14()["large"]["fsdp2"]["by_rank"]) / 1e6,
    "own-1b-2-memory": lambda: _week14()["memory"]["fsdp2"]["peak_bytes"] / GIB,
    "own-1b-2-ddp-memory": lambda: _week14()["memory"]["ddp"]["peak_bytes"] / GIB,
}


def test_memory_comes_within_five_per_cent_where_torch_measured_it():
    measured = [each for each in OWN if each["mem_gib"]]
    assert len(measured) >= 10
    found = runs(measured)
    off = memory(found.cases).total / GIB / np.array([number(each, "mem_gib") for each in measured]) - 1
    assert np.abs(off).max() < 0.05


def test_what_is_not_fitted_is_what_was_set():
    names = set(Constants._fields) - set(WIDTHS)
    assert {name: getattr(constants(), name) for name in names} == {name: getattr(Constants(), name) for name in names}


def test_errors_on_record_are_within_the_aims_of_unseen_stacks():
    found = accuracy()
    assert found["stack_out_mean"] < 0.15 and found["row_out_mean"] < 0.08 and found["row_out_median"] < 0.05


def test_names_of_gpus():
    assert find_chip("NVIDIA H100 80GB HBM3") == CHIPS["h100"]
    assert find_chip("H100-96HBM2e-500W").watts == 500
    assert find_chip("H100-96HBM2e-500W").hbm < CHIPS["h100"].hbm
    assert find_chip("A100-40").memory_gb == 40 and find_chip("A100-80").memory_gb == 80
    assert find_chip("H1000") is None and find_chip("H200 PCIe") is None and find_chip("TPU v5p") is None
    assert find_chip("NVIDIA H100 PCIe") == find_chip("h100-pcie") == CHIPS["h100-pcie"] != CHIPS["h100"]
    assert find_chip("NVIDIA A100 80GB PCIe") == CHIPS["a100-pcie"]


@pytest.mark.parametrize("gpu, gib", [("h100", 81559 / 1024), ("h200", 143771 / 1024), ("b200", 183359 / 1024)])
def test_a_board_holds_what_its_driver_reports(gpu, gib):
    """MiB as nvidia-smi prints them: an H100's 80 GB, an H200's 141, a B200's 180."""
    assert columns_of(CHIPS[gpu])["memory"] / GIB == pytest.approx(gib, rel=0.002)


def test_under_a_pipeline_fsdp_gathers_once_and_keeps_the_stage():
    """torchtitan's default. ZeRO 3 without stages gathers with every micro-batch, and holds two layers."""
    whole = dict(tp=8, pp=8, dp=8, gpus=512, gbs=256, mbs=1)
    few, many = (parts(one("titan-405b-512-1f1b", **{**whole, "gbs": gbs}))["data"] for gbs in (128, 256))
    alone = [
        parts(one("titan-405b-512-1f1b", **{**whole, "gbs": gbs, "pp": 1, "gpus": 64}))["data"] for gbs in (128, 256)
    ]
    assert many <= few and alone[1] == pytest.approx(2 * alone[0], rel=0.05)
    held, cut = (memory(one("titan-405b-512-1f1b", **more)) for more in ({}, dict(pp=1, gpus=64, layers=16)))
    assert held.gathered.min() > cut.gathered.max() and held.gradients.min() > cut.gradients.max()


def test_software_decides_the_range_of_memory():
    c = one("dgxc-n15b-bf16-64")
    lean, plain = memory(c, LEAN), memory(c, PLAIN)
    assert lean.gradients * 2 == plain.gradients and lean.logits * 3.5 == pytest.approx(plain.logits)
    assert lean.weights == plain.weights and lean.optimizer == plain.optimizer and lean.activations < plain.activations
    need = room(c, 0.1)
    have = np.linspace(0.9 * need.least, 1.1 * need.most, 200).ravel()
    words = [int(need.fits(np.array([each]))[0]) for each in have]
    assert words == sorted(words) and set(words) == {0, 1, 2}
    assert memory(one("dgxc-n15b-fp8-64")).activations < plain.activations  # products keep their inputs in one byte

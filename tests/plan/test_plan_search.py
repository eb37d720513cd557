"""`lab plan`: what is enumerated, refused, ranked, said."""

import json
import math
import time
import tomllib
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from labkit.errors import LabError
from labkit.model.config import sizes
from labkit.plan import explain
from labkit.plan.cases import FORMATS
from labkit.plan.footprint import FITS, MAY
from labkit.plan.model import MODELS, find_model
from labkit.plan.planner import plan
from labkit.plan.request import Request, find_cluster
from labkit.plan.search import ranked, refusal, search, ties

MODEL = """layers = 24
hidden = 2048
heads = 16
kv_heads = 8
ffn = 5632
vocab = 32000
seq = 4096
"""


def found_for(model="70b", gpus=64, gpu="h100", gbs=512, precisions=("bf16", "fp8"), **more):
    return search(find_model(model), find_cluster(Request(gpus=gpus, gpu=gpu, **more)), gbs, precisions)


@pytest.fixture(scope="module")
def found():
    return found_for()


def said(width=200, **options) -> str:
    out = StringIO()
    assert plan(Request(**options), Console(file=out, width=width)) == 0
    return out.getvalue()


@pytest.mark.parametrize("gpus", [64, 40])  # 40: five stages, for which 512 sequences are no whole rounds
def test_every_plan_is_one_that_a_framework_accepts(gpus):
    found = found_for(gpus=gpus)
    c, model = found.cases, found.model
    assert np.all(c.dp * c.tp * c.pp * c.cp == gpus)
    assert np.all(model.heads % c.tp == 0) and np.all(model.kv_heads % c.tp == 0)
    assert np.all(c.gbs % (c.dp * c.mbs) == 0)
    assert np.all((c.vp == 1) | (c.micro % c.pp == 0))
    assert np.all((c.zero < 3) | (c.pp == 1))
    assert len({tuple(found.plan(i).values()) for i in range(len(c.tp))}) == len(c.tp)  # none twice


def test_experts_are_spread_inside_data_parallel_ranks():
    c = found_for("8x7b").cases
    assert set(c.ep.tolist()) == {1, 2, 4, 8} and np.all((c.dp * c.cp) % c.ep == 0)


def test_the_list_is_ranked_and_all_of_it_fits(found):
    rows = ranked(found, "time")
    seconds = found.seconds[rows]
    assert np.all(np.diff(seconds) >= 0) and found.fits[rows].all()
    assert seconds[0] == found.seconds[found.fits].min()
    assert found.room.least[rows].max() <= found.cases.memory[0]
    tied = ties(found, rows)
    assert tied[0] and not tied[-1] and sorted(tied, reverse=True) == tied


def test_goals_are_what_they_say(capsys):
    quick, lean = (found_for("8b", 64), ranked(found_for("8b", 64), "memory"))
    best = ranked(quick, "time")[0]
    assert quick.memory.total[lean[0]] < quick.memory.total[best]
    assert quick.seconds[lean[0]] <= 1.25 * quick.seconds[best]
    # 1B with 64K tokens a step does not need 256 GPUs: fewer cost less
    small = dict(model="1b", gpus=256, batch_tokens="64K")
    assert answer(capsys, **small, goal="time")["gpus"] == 256 > answer(capsys, **small, goal="cost")["gpus"]


def test_tensor_parallel_ranks_stay_in_a_node_and_the_reason_is_told():
    of = found_for("405b", 1024, precisions=("bf16",))
    best = ranked(of, "time")[0]
    assert of.plan(best)["tp"] <= 8
    four = found_for("70b", 64, precisions=("bf16",), per_node=4, nvlink=450.0, ib=12.5)
    row = ranked(four, "time")[0]
    assert four.plan(row)["tp"] <= 4
    assert len(explain.neighbours(four, row)) >= 6
    wide = four.cases.tp == 8
    words = explain.why_not(four, row, np.flatnonzero(wide & (four.cases.cp == 1) & (four.cases.pp == 4)), "tp", 8)
    assert "leave the node of 4" in words


@pytest.mark.parametrize("options", [dict(model="70b"), dict(model="405b", gpus=16384, batch_tokens="16M")])
def test_no_number_is_cut_on_a_narrow_terminal(options):
    tables = [line for line in said(**options, width=80).splitlines() if line[:1].isdigit()]
    assert len(tables) >= 30 and not any("…" in line for line in tables)


def test_two_plans_line_by_line(found):
    a, b = ranked(found, "time")[:2]
    lines = {what.strip(): (one, two) for what, one, two in explain.compare_lines(found, a, b)}
    seconds = [pair for what, pair in lines.items() if what.endswith(", s") and what != "step, s"]
    for i in (0, 1):  # what is not shown is less than a two-thousandth each
        assert sum(pair[i] for pair in seconds) == pytest.approx(lines["step, s"][i], rel=5e-3)
    assert explain.choose(found, explain.name(found.plan(b)), [a]) == b
    assert explain.choose(found, "2", [a, b]) == b
    eights, shown = explain.choose(found, "tp8.pp8", [a]), said(model="70b", explain=("1", "tp8.pp8"))
    assert explain.name(found.plan(eights)) in shown
    assert all(f"{other - one:+.3g}" in shown for _, one, other in explain.compare_lines(found, a, eights))
    one = explain.choose(found, "tp4.pp4.cp1", [a])
    assert found.cases.cp[one] == 1  # a name leaves it out
    plain = explain.choose(found, "bf16.keep", [a])
    assert not found.cases.format[plain] and not found.cases.recompute[plain] and found.fits[plain]


def test_what_is_printed_and_written(tmp_path, capsys):
    shown = said(model="70b", figure=tmp_path / "a.png", write=tmp_path / "run.toml")
    heads = ("step s", "MFU", "GiB", "loses most to", "bubble", "optim")
    assert all(word in shown for word in (*heads, "activations", "Why dp", "does not fit", "GB/s"))
    assert plan(Request(model="70b", as_json=True)) == 0
    answer = json.loads(capsys.readouterr().out)
    best = answer["plans"][0]
    assert sum(best["parts_s"].values()) == pytest.approx(best["step_s"])
    assert len(answer["plans"]) == 10 and answer["why_not"]
    table = tomllib.loads((tmp_path / "run.toml").read_text())["parallel"]
    assert all(table[key] == best["plan"][key] for key in ("dp", "tp", "pp", "vp", "cp", "ep", "zero"))
    assert table["micro_batch"] == best["plan"]["mbs"] and table["precision"] in ("bf16", "fp8")
    assert (tmp_path / "a.png").stat().st_size > 10_000 and (tmp_path / "a.svg").exists()


@pytest.mark.parametrize(
    "given, text",
    [
        (dict(model="9b"), "--model '9b' is not known"),
        (dict(model="none.toml"), "there is no config file none.toml"),
        (dict(gpus=0), "--gpus lies between"),
        (dict(gpus=12), "not whole nodes of 8"),
        (dict(gpu="tpu", peak=100.0, memory=80.0, hbm=900.0), "four numbers"),
        (dict(ib=0.0), "--ib 0 makes no sense"),
        (dict(nvlink=float("nan")), "makes no sense"),
        (dict(batch_tokens="1K"), "holds no sequence of 8192"),
        (dict(precision="fp4"), "--precision is bf16, fp8, mxfp8 or nvfp4, not 'fp4'"),
        (dict(precision="fp8", gpu="a100"), "it has no FP8 units"),
        (dict(precision="mxfp8"), "MXFP8 needs units that come with Blackwell"),
        (dict(precision="nvfp4", gpu="x", peak=2250.0, fp8_peak=4500.0, memory=180.0, hbm=8000.0), "(--fp4-peak)"),
        (dict(goal="fame"), "--goal is time, cost or memory"),
        (dict(explain=("1", "99999")), "the list has"),
        (dict(explain=("1", "tp3")), "no plan of this model on this cluster has it"),
        (dict(figure=Path("x.gif")), "a picture is NAME.png"),
        (dict(gpus=104), "no plan divides 104 GPUs"),
        (dict(write=Path("/nowhere/x.toml")), "could not write"),
    ],
)
def test_bad_input_is_one_sentence(given, text):
    with pytest.raises(LabError) as error:
        plan(Request(**given))
    assert text in str(error.value) and str(error.value).isprintable()


def test_nothing_fits_names_what_is_missing_and_what_would():
    with pytest.raises(LabError) as error:
        plan(Request(model="405b", gpus=8))
    words = str(error.value)
    assert "GiB a GPU where 80 are" in words
    gpus = int(words.split("it fits on ")[1].split()[0])
    assert found_for("405b", gpus, gbs=512).fits.any()
    assert not found_for("405b", gpus // 2, gbs=512).fits.any()


def test_a_blackwell_computes_in_mxfp8_and_in_nvfp4(capsys):
    of = {name: found_for("8b", 8, "b200", precisions=(name,)) for name in FORMATS}
    row = ranked(of["bf16"], "time")[0]
    gemm, casts = ([float(getattr(one.step, part)[row]) for one in of.values()] for part in ("gemm", "casts"))
    copy = [float(one.memory.gathered[row]) for one in of.values()]
    assert gemm[0] > gemm[1] == gemm[2] > gemm[3] and casts[0] == 0 < casts[1] == casts[2] == casts[3]
    kept = [each - copy[0] for each in copy]  # a copy of the weights: 1 byte each, and a scale for 32 or 16 of them
    assert kept[2] / kept[1] == pytest.approx(33 / 32) and kept[3] / kept[1] == pytest.approx(9 / 16)
    best = answer(capsys, model="8b", gpus=8, gpu="b200", precision="nvfp4")["plans"][0]
    assert best["name"].endswith(".nvfp4") and FORMATS[best["plan"]["format"]] == "nvfp4"
    mine = find_cluster(Request(gpu="h100", fp4_peak=3958.0)).chip
    assert refusal("nvfp4", MODELS["8b"], mine) is None and mine.fp4_tflops == 3958
    odd = MODELS["8b"].model_copy(update={"ffn": 16 * 901})
    assert refusal("fp8", odd, mine) is None and refusal("mxfp8", odd, mine) == "ffn must be a multiple of 32"


def test_a_gpu_by_its_numbers_is_that_gpu():
    given = find_cluster(Request(gpu="mine", peak=989.0, fp8_peak=1979.0, memory=80.0, hbm=3350.0, nvlink=450.0))
    known = find_cluster(Request())
    assert given._replace(chip=given.chip._replace(known=True, nvlink=450.0)) == known
    assert find_cluster(Request(gpu="mine", peak=989.0, fp8_peak=0.0, memory=80.0, hbm=3350.0)).intra == 64e9
    without = find_cluster(Request(gpu="x", peak=1.0, fp8_peak=0.0, memory=8.0, hbm=9.0)).chip
    assert refusal("fp8", MODELS["8b"], without)


@pytest.mark.parametrize("name", sizes())
def test_a_decoder_of_this_course_has_the_shape_that_it_trains(name):
    """C.5 plans what it then trains. The planner leaves norms out, and a tied head."""
    shapes = sizes()[name].weight_shapes()
    tied = {"head.weight"} if sizes()[name].tie_embeddings else set()
    trained = sum(math.prod(shape) for key, shape in shapes.items() if len(shape) > 1 and key not in tied)
    assert find_model(name).parameters == trained and find_model(name).seq <= sizes()[name].max_seq_len
    assert f"{trained / 10 ** (9 if name in ('1b', '8b') else 6):.3g} " in said(model=name, gpus=8)


def test_a_model_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MODEL)
    assert "1.26 B parameters" in said(model=str(path), gpus=8)
    for line, text in (("experts = 8\n", "topk"), ("hiden = 3\n", "mean 'hidden'"), ("gated = 3\n", "true or false")):
        path.write_text(MODEL + line)
        with pytest.raises(LabError, match=text):
            find_model(str(path))


def test_it_answers_in_time():
    """CPU seconds of this process: whoever else uses the machine does not count."""
    begin = time.process_time()
    said(model="405b", gpus=1024, batch_tokens="16M")
    assert time.process_time() - begin < 2


def answer(capsys, **options):
    assert plan(Request(as_json=True, **options)) == 0
    return json.loads(capsys.readouterr().out)


def test_what_may_fit_is_ranked_and_said_and_so_is_what_surely_fits(capsys):
    found = found_for("8b", 8, precisions=("bf16",))
    order = ranked(found, "time")
    assert found.fit[order[0]] == MAY and {MAY, FITS} == set(found.fit[order])
    sure = next(row for row in order if found.fit[row] == FITS)
    (words,) = explain.doubt(found, order)
    assert explain.name(found.plan(sure)) in words and explain.doubt(found, [sure]) == []
    least, most, have = (float(one[sure]) for one in (found.room.least, found.room.most, found.cases.memory))
    assert least < found.room.expected[sure] < most <= have
    plans = answer(capsys, model="8b", gpus=8)["plans"]
    low, high = plans[0]["range_gib"]
    assert plans[0]["fit"] == "may fit" and low <= plans[0]["needed_gib"] <= high


def test_a_measured_step_scales_all_of_them(capsys):
    plain, scaled = (answer(capsys, model="8b", gpus=8, **more) for more in ({}, dict(measured=1000.0)))
    ratio = [b["step_s"] / a["step_s"] for a, b in zip(plain["plans"], scaled["plans"])]
    assert [p["name"] for p in plain["plans"]] == [p["name"] for p in scaled["plans"]]
    best = scaled["plans"][0]
    assert ratio == pytest.approx([ratio[0]] * len(ratio)) and best["step_s"] == pytest.approx(1000, rel=0.01)
    assert sum(best["parts_s"].values()) == pytest.approx(best["step_s"])
    other = answer(capsys, model="8b", gpus=8, measured=1000.0, of="tp4.recompute")
    assert other["plans"][0]["step_s"] < scaled["plans"][0]["step_s"]  # a slower plan took as long

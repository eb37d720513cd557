"""What the renters' pages and README.md quote beside `findings`: predictions of presets, the map of linears in short.

Rates of a whole machine are tokens/s, times minutes, sizes GiB unless a name says otherwise.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path

from labkit.compare import budget, memory, own
from labkit.compare.arms import Arm, arm_rows
from labkit.compare.arms import answers as answers_of
from labkit.compare.figures.answer import answer as draw_answer
from labkit.compare.preset import load_preset
from labkit.compare.terminal import markdown_table
from labkit.model.config import sizes
from labkit.record.plotting import Picture
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig
from week16_fp8.given import crossover
from week16_fp8.given.findings import (
    ARMS,
    BF16,
    BIG,
    FITS,
    FOUR,
    FP8,
    H100_WHOLE,
    LEVERS,
    ONCE,
    WHOLE,
    each,
    gib,
    lones,
    read,
    shares,
    timed,
    times,
)

H100, H200 = 79.2, 140.4  # GiB, as torch reports them
FILLED = own.FILLED  # of a GPU, in `lab compare --model`
SIZES = ("1.14B", "124M")  # of the models that the preset h100 times and trains
OWN = "week16"  # the arm of the student's own linear, skipped until it is written


def predicted(gib: float, *parts: str, own: bool = True, second: bool = False) -> float:
    """Minutes that the preset h100 is predicted to take on a GPU of this size. second: both recipes are undecided."""
    preset = load_preset("h100")
    arms = [("speed", arm) for arm in preset.timed]
    arms += [("safety", arm) for arm in preset.trained if second or preset.arms[arm].look == 1]
    chosen = [(part, arm) for part, arm in arms if part in (parts or ("speed", "safety")) and (own or arm != OWN)]
    return sum(budget.predict(preset, part, arm, gib).predicted_s for part, arm in chosen) / 60


def planned(gib: float) -> float:
    """Minutes to plan for on a GPU of this size: the preset, both recipes undecided; the map; ten around them."""
    return 10 + predicted(gib, own=False, second=True) + map_minutes()


def cost(minutes: float) -> float:
    """Of so many minutes at 3 an hour."""
    return minutes / 60 * 3


def paid(run: str) -> float:
    """Seconds of all calls of a comparison."""
    return sum(call["seconds"] for call in read(run).results["calls"])


def h100_rows() -> list[list[str]]:
    """Each arm timed on an H100: its speed against BF16 there and on an H200, and its memory."""
    arms = read(H100_WHOLE).results["speed"]["arms"]
    there = read(WHOLE).results["speed"]["arms"]
    return [
        [
            row["label"],
            f"{times(H100_WHOLE, arm):.2f}",
            f"{times(WHOLE, arm):.2f}" if arm in there else "",
            f"{gib(H100_WHOLE, arm):.0f}",
        ]
        for arm, row in sorted(arms.items(), key=lambda each: -each[1]["tokens_per_s"])
    ]


@cache
def answers(run: str) -> dict[str, Arm]:
    """The arms of a comparison that were timed, with its verdicts on their losses."""
    return {arm.name: arm for arm in answers_of(arm_rows(read(run))) if arm.timed}


def answer_picture(run: str, name: str, folder: Path) -> Picture | None:
    return draw_answer(list(answers(run).values()), folder, name, sizes=SIZES)


def predicted_memory() -> str:
    """GiB of each GPU in compiled BF16, as `lab compare` prints them before it starts."""
    rows = []
    for name, size, world in (("h100", H100, 1), ("h100", H200, 1), ("8b", H100, 8), ("8b", H200, 8)):
        config = load_preset(name).speed_config("bf16", size, world)
        bytes_of = memory.predict(config, world)
        fixed = bytes_of["weights"] + bytes_of["optimizer"]  # gradients come as activations go
        parts = (fixed, *(bytes_of[key] for key in ("gathered", "activations", "logits", "peak")))
        gpus = f"{world} GPU{'s' if world > 1 else ''} of {'80' if size == H100 else '140'} GiB"
        each_has = f"{config.batch_size // world} sequence{'s' if config.batch_size > world else ''} each"
        rows.append([f"`{name}`, {gpus}, {each_has}", *(f"{part / memory.GIB:.1f}" for part in parts)])
    heads = ["", "weights, AdamW", "gathered", "activations", "logits", "together"]
    return markdown_table(heads, rows)


def kept_bf16() -> float:
    """GiB predicted of each of two GPUs for 8B in BF16, two sequences each, with weights kept for the backward."""
    config = load_preset("8b").speed_config("bf16", H200, 2).replace(reshard_after_forward=False)
    return memory.predict(config, 2)["peak"] / memory.GIB


def four_of_80() -> float:
    """GiB predicted of each of four GPUs for 8B in BF16, one sequence each."""
    return memory.predict(load_preset("8b").speed_config("bf16", H100, 4), 4)["peak"] / memory.GIB


def beside_peak() -> list[float]:
    """GiB of a GPU beside the most that torch's tensors took: of the recorded 8B runs with expandable segments."""
    runs = (("two-bf16", BF16), ("two-kept", FP8), ("two-kept-current", "te-current"))
    rows = [timed(f"{FITS}/{run}", arm) for run, arm in runs] + [timed(FOUR, FP8)]
    return [(row["taken_bytes"] - row["memory"]["peak"]) / memory.GIB for row in rows]


def too_much(run: str) -> float:
    """By how many per cent the prediction of a recorded BF16 training was above the memory that it took."""
    recorded = read(f"{run}/speed/{BF16}").run
    config = strict_validate(TrainConfig, recorded["config"], "the record")
    peak = memory.predict(config, recorded["world"]["size"])["peak"]
    return 100 * peak / recorded["results"]["speed"]["memory"]["peak"] - 100


def map_minutes() -> float:
    """How long the recorded `lab crossover` took."""
    record = crossover.records.load(crossover.FOLDER)
    began, ended = (datetime.fromisoformat(record[key]) for key in ("started", "finished"))
    return (ended - began).total_seconds() / 60


def slowest_chip() -> float:
    """By how many per cent the slowest GPU of host B trains less than the fastest, each alone."""
    rates = lones(ONCE, BF16)
    return 100 - 100 * min(rates) / max(rates)


def kept_gib() -> float:
    """GiB of each of four GPUs that weights kept for the backward cost at 8B."""
    return gib(f"{BIG}/kept", FP8) - gib(f"{BIG}/as-it-is", FP8)


def once_gib() -> float:
    """GiB of each GPU that gradients reduced once a step cost at 8B: the whole model's, in FP32. Computed."""
    block, outside = memory.parameters(sizes()["8b"])
    return 4 * (sizes()["8b"].n_layers * block + outside) / memory.GIB


def levers() -> str:
    """What was tried against the cost of messages, at 1B and at 8B."""
    kept = "`--set train.reshard_after_forward=false`"
    rows = []
    for words, one, big, costs in (
        ("the preset as it is", f"{LEVERS}/as-it-is", f"{BIG}/as-it-is", ""),
        (
            f"{kept}: a block's weights stay for its backward",
            f"{LEVERS}/kept",
            f"{BIG}/kept",
            f"at 8B {kept_gib():.0f} GiB more",
        ),
        (
            f"{kept} `--set train.accumulation=4 --set train.reduce_once=true`: four micro-batches a step, gradients "
            "reduced once (another host)",
            f"{ONCE}/four",
            "",
            f"4 bytes a parameter, at 8B {once_gib():.0f} GiB: too much for two sequences on four H200s; a batch four "
            "times as large",
        ),
        ("`NCCL_MAX_CTAS=8`", f"{LEVERS}/ctas8", "", ""),
    ):
        cells = [f"{shares(one, arm):.1f}" for arm in ARMS] + [f"{shares(one, arm, min):.1f}" for arm in ARMS]
        cells += [f"{each(big, arm):,.0f}" if big else "not tried" for arm in ARMS]
        rows.append([words, *cells, costs])
    heads = ["1B, % of mean: BF16", "FP8", "1B, % of slowest: BF16", "FP8", "8B, tokens/s a GPU: BF16", "FP8", "costs"]
    return markdown_table(["setting", *heads], rows)


def best_linear() -> float:
    """How many times as fast as in BF16 the best linear of the map is in FP8."""
    return max(gain for arm in crossover.NAMES for gain in crossover.gains(arm).values())


def losing() -> float:
    """Milliseconds in BF16 up to which no recipe gains on any shape of the map."""
    gaining = {shape for arm in crossover.NAMES for shape, gain in crossover.gains(arm).items() if gain > 1}
    times = {shape: cell.took for shape, cell in crossover.of(crossover.BASE).items()}
    first = min(times[shape] for shape in gaining)
    return 1e3 * max(took for took in times.values() if took < first)


def gained_at(arm: str = FP8) -> str:
    """At how many shapes of the map this recipe gains: "10 of 27"."""
    gains = crossover.gains(arm).values()
    return f"{sum(gain > 1 for gain in gains)} of {len(gains)}"

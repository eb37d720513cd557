"""All plans of a model on a cluster: enumerated, refused, predicted, ranked, in one call of the model.

A plan is a choice of dp x tp x pp x cp (their product is the number of GPUs), ep inside dp x cp, the ZeRO stage, the
micro-batch, interleaving, recomputation and precision. What a framework would refuse is left out.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from labkit.errors import LabError
from labkit.model.shape_file import Model
from labkit.plan.cases import COLUMNS, FLASH, FORMATS, FULL, NONE, Array, Cases, cases
from labkit.plan.constants import accuracy, constants
from labkit.plan.footprint import NOT, Memory, Room, memory, room
from labkit.plan.machine import columns_of
from labkit.plan.step import Step, step
from labkit.precision.recipes import find_recipe
from labkit.record.chips import Chip

MICRO, INTERLEAVED, CONTEXT = (1, 2, 4, 8), (1, 2, 4, 5, 8, 10), (1, 2, 4, 8, 16)
DEEPEST, WIDEST = 64, 64  # stages; tensor-parallel ranks
UNEVEN = 1.1  # stages need not be alike, as in Llama 3 405B, whose 126 layers ran on 16; what this wastes at most
LONG = 8192  # tokens of a sequence from which on context parallelism is tried
# Format -> the recipe whose refusals in the compatibility matrix are a plan's, too.
RECIPE = {"fp8": ("te", "delayed"), "mxfp8": ("te", "mxfp8"), "nvfp4": ("te", "nvfp4")}
PLAN = ("dp", "tp", "pp", "vp", "cp", "ep", "zero", "mbs", "recompute", "format")
Goal = Literal["time", "cost", "memory"]


class Cluster(NamedTuple):
    """GPUs of one kind, `per_node` of them linked at `intra`, nodes at `inter` (bytes/s a GPU, one direction)."""

    chip: Chip
    gpus: int
    per_node: int
    intra: float
    inter: float


class Found(NamedTuple):
    """Every plan, with what the model says of it. Rows of all members belong together."""

    cases: Cases
    step: Step
    memory: Memory
    room: Room
    fit: Array  # NOT, MAY or FITS (footprint.py)
    seconds: Array
    model: Model
    cluster: Cluster

    @property
    def fits(self) -> Array:
        return self.fit > NOT

    def plan(self, row: int) -> dict[str, int]:
        return {name: int(getattr(self.cases, name)[row]) for name in PLAN}

    def times(self, factor: float) -> "Found":
        """The same plans, all steps so many times as long."""
        step = Step(*(factor * part for part in self.step))
        return self._replace(step=step, seconds=factor * self.seconds)

    def tokens_s_gpu(self) -> Array:
        return self.cases.gbs * self.cases.seq / self.seconds / self.cases.gpus

    def mfu(self) -> Array:
        """Return the share of the BF16 peak, by the data's convention (full attention)."""
        return self.tokens_s_gpu() * self.cases.model_flops / self.cases.peak


def refusal(precision: str, model: Model, chip: Chip) -> str | None:
    """Say why this model cannot compute in this format on this chip, or return None."""
    if precision == "bf16":
        return None
    if precision == "fp8" and not chip.fp8_tflops:
        return "it has no FP8 units"
    if precision != "fp8" and not chip.fp4_tflops:
        return f"{precision.upper()} needs units that come with Blackwell, and no peak of its FP4 units is known (--fp4-peak)"
    multiple = find_recipe(*RECIPE[precision])[1].multiple
    odd = [n for n in ("hidden", "ffn") if getattr(model, n) % multiple]
    return f"{' and '.join(odd)} must be a multiple of {multiple}" if odd else None


def list_plans(model: Model, gpus: int, gbs: int) -> Iterator[tuple[int, ...]]:
    """Yield what a framework would accept: (dp, tp, pp, vp, cp, ep, zero, mbs, recompute)."""
    layers = model.layers
    # Layers that all stages would have if each were as full as the fullest.
    pps = [p for p in range(1, min(DEEPEST, layers) + 1) if -(-layers // p) * p <= UNEVEN * layers]
    tps = [t for t in powers(WIDEST) if model.heads % t == 0 and model.kv_heads % t == 0 and model.ffn % t == 0]
    cps = [c for c in CONTEXT if c == 1 or (model.seq >= LONG and model.seq % (2 * c) == 0)]
    eps = [e for e in powers(model.experts) if model.experts % e == 0] if model.experts else [1]
    for tp, pp, cp, ep in itertools.product(tps, pps, cps, eps):
        dp, rest = divmod(gpus, tp * pp * cp)
        if rest or not dp or gbs % dp or (dp * cp) % ep:
            continue
        zeros = (0,) if dp * cp == 1 else (0, 1) if pp > 1 else (0, 1, 3)
        for mbs, vp in itertools.product(MICRO, INTERLEAVED):
            micro, rest = divmod(gbs, dp * mbs)
            if rest or (vp > 1 and (pp == 1 or -(-layers // pp) % vp or micro % pp)):
                continue
            for zero, recompute in itertools.product(zeros, (NONE, FULL)):
                yield dp, tp, pp, vp, cp, ep, zero, mbs, recompute


def powers(most: int) -> list[int]:
    return [2**i for i in range(int(math.log2(max(1, most))) + 1)]


def enumerate_plans(model: Model, cluster: Cluster, gbs: int, precisions: tuple[str, ...]) -> Cases:
    """Return every plan that a framework would accept, whether it fits or not. LabError: there is none."""
    rows = list(list_plans(model, cluster.gpus, gbs))
    if not rows:
        raise LabError(
            f"no plan divides {cluster.gpus} GPUs for this model with {gbs} sequences a step: take a number of GPUs "
            "that is a power of two, or a --batch-tokens that is a multiple of GPUs x sequence length"
        )
    table = np.array([(*row, FORMATS.index(name)) for row in rows for name in precisions], dtype=np.float64).T
    columns = dict(zip(PLAN, table))
    return cases(
        {
            **columns,
            **{name: float(getattr(model, name)) for name in Model.model_fields if name in COLUMNS},
            **columns_of(cluster.chip),
            "gbs": gbs,
            "sp": columns["tp"] > 1,
            "attention": FLASH,
            "tp_overlap": 1,
            "dp_overlap": 1,
            "half": 0,
            "per_node": cluster.per_node,
            "intra": cluster.intra,
            "inter": cluster.inter,
        }
    )


def search(model: Model, cluster: Cluster, gbs: int, precisions: tuple[str, ...]) -> Found:
    c = enumerate_plans(model, cluster, gbs, precisions)
    k = constants()._replace(**dict(cluster.chip.rates))
    parts, need = step(c, k), room(c, accuracy()["memory"])
    return Found(c, parts, memory(c), need, need.fits(c.memory), parts.total, model, cluster)


def ranked(found: Found, goal: Goal) -> list[int]:
    """The rows of the plans that fit or may fit, best first; of plans alike in degrees, ZeRO stage, precision the best.

    time: the shortest step; memory: the least among those at most a quarter slower; cost: as time.
    """
    order = np.argsort(np.where(found.fits, found.seconds, np.inf), kind="stable")[: int(found.fits.sum())]
    if goal == "memory" and order.size:
        quick = order[found.seconds[order] <= 1.25 * found.seconds[order[0]]]
        order = quick[np.argsort(found.memory.total[quick], kind="stable")]
    seen, out = set(), []
    for row in order.tolist():
        key = tuple(int(getattr(found.cases, name)[row]) for name in ("dp", "tp", "pp", "cp", "ep", "zero", "format"))
        if key not in seen:
            seen.add(key)
            out.append(row)
    return out


def ties(found: Found, rows: list[int]) -> list[bool]:
    """Say which of these are within the model's own error of the quickest of them."""
    least = min(float(found.seconds[row]) for row in rows)
    return [bool(np.log(found.seconds[row] / least) <= accuracy()["tie"]) for row in rows]

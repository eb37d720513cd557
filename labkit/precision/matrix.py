"""What goes with what: every precision recipe against every way to train, and against every generation of GPUs.

One table, RULES. A rule speaks of the recipes and columns its patterns name; the first that fits decides:

    yes        runs; `proof` is the test or the committed record that shows it
    untried    allowed; nobody has shown it here, and `why` says what is known instead
    no         refused before a run starts, with `why`

`lab doctor --matrix` prints the table (labkit.doctor.matrix), `refuse` enforces it: `lab compare` and the trainer ask
it before they start. Two settings go across the recipes, and have rows of their own beside their columns: a precision
schedule, and FP8 parameters. A column says whether a recipe can have it, the row what it does together with the other
ways and machines. TP, EP and PP have no setting: a configuration has no key for them, and what runs is built around the
trainer (labkit.parallel.tensor, week 15).

What needs the model to be told (dims and tokens that must divide) the backends refuse themselves; the multiples stand
in the table.

Nothing here imports torch, except `this_gpu` for a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from labkit.errors import LabError

YES, UNTRIED, NO = "yes", "untried", "no"
# "backend recipe"; the multiple of which in and out features and tokens must be
RECIPES = {
    "fp32 fp32": 1,
    "bf16 bf16": 1,
    "amp bf16": 1,
    "amp fp16": 1,
    "te bf16": 1,
    "te delayed": 16,
    "te current": 16,
    "te block": 128,
    "torchao tensorwise": 16,
    "torchao rowwise": 16,
    "torchao rowwise_with_gw_hp": 16,
    "emulated tensorwise": 16,
    "emulated block": 16,
    "broken *": 16,
    "week16 *": 16,
}
SCHEDULE, PARAMETERS = "schedule", "FP8 params"
ROWS = {SCHEDULE: "with a schedule", PARAMETERS: "with FP8 params"}  # beside the recipes
FEATURES = ("FSDP2", "TP", "EP", "PP", "compile", "checkpointing", "fused", SCHEDULE, PARAMETERS)
# name -> (lowest compute capability, examples)
GENERATIONS = {
    "CPU": (None, "any"),
    "older": ((0, 0), "V100, T4"),
    "Ampere": ((8, 0), "A100, RTX 3090"),
    "Ada": ((8, 9), "L40S, RTX 4090"),
    "Hopper": ((9, 0), "H100, H200"),
    "Blackwell": ((10, 0), "B200"),
    "Blackwell RTX": ((12, 0), "RTX 5090"),
}
COLUMNS = (*FEATURES, *GENERATIONS)
PROOFS = {
    "check": "results/2026-11-22-h200-gpu-check-124m",  # one rank, compiled, Hopper
    "demo": "results/2026-11-23-cpu-demo",  # two ranks, CPU
    "tried": "week16_fp8/results/h200-matrix.json",  # studies.matrix on one H200
    "tried-2": "week16_fp8/results/h200-matrix-2.json",  # the same with schedules, on another H200
    "tried-3": "week16_fp8/results/h200-matrix-3.json",  # FP8 parameters, and the emulated block recipe
    "8b": "week16_fp8/results/2026-11-26-h200-8b/two",  # two ranks, Hopper
    "8b-current": "week16_fp8/results/2026-11-26-h200-8b/two-kept-current",  # two ranks, Hopper
    "staged": "week16_fp8/results/2026-11-26-h200-two-stage",  # two ranks, Hopper
    "scheduled": "tests/train/test_schedule.py",  # CPU
    "parameters": "tests/train/test_fp8_parameters.py",  # CPU
    "job": "tests/train/test_job.py",  # CPU
    "amp": "tests/precision/test_amp.py",  # CPU
    "here": "tests/doctor/test_matrix.py",  # CPU
    "meshes": "tests/parallel/test_meshes.py",  # CPU
    "piped": "week15_tp_attention/test_pipeline.py",  # CPU
    "tp": "week15_tp_attention/results/h200-2.json",  # two ranks, Hopper
}
# recipes with columns: state (proof), several patterns by "|"; then why. The first that fits decides.
TABLE = """
# a precision schedule: as a column, then as a row
fp32 *|bf16 *|amp *|te bf16 with schedule: no
    there is no FP8 phase to switch to: take out the schedule, or take a backend with FP8
torchao tensorwise|emulated * with schedule: yes (scheduled)
    the linear becomes a plain product in the BF16 steps
te * with schedule: yes (tried-2)
    by te.autocast(enabled=...). Delayed scaling starts blind at the switch; calibrate is untried
torchao *|broken * with schedule: yes (tried-2)
    the same switch as torchao tensorwise's
week16 * with schedule: untried
    the same switch as torchao tensorwise's; no record of it
schedule|FP8 params with schedule|FP8 params: no
    a BF16 phase would multiply weights that are FP8 all the same: take either the schedule or fp8_parameters
schedule with FSDP2|checkpointing: yes (scheduled)
    shown on CPU ranks; several GPUs have not been tried
schedule with compile: yes (tried-2)
    each switch compiles one more graph of every block
schedule with fused: yes (tried-2)
    te's fused modules follow te.autocast like the others
schedule with CPU: yes (scheduled)
    real FP8 numbers in the FP8 steps
schedule|FP8 params with Ampere: untried
    for the emulated backend alone, the others have no FP8 there; no such GPU was at hand
schedule with Hopper: yes (tried-2)
    on record
schedule with Ada|Blackwell*: untried
    no such GPU was at hand

# FP8 parameters: as a column, then as a row
emulated block with FP8 params: yes (parameters)
    an FP32 tensor of FP8 values, FP32 master weights in AdamW; the gather is BF16
te block with FP8 params: yes (tried-3)
    te.quantized_model_init, gathered as FP8
* with FP8 params: no
    FP8 parameters need power-of-two scales, so that rounding twice is rounding once: take recipe block of te or
    emulated
FP8 params with FSDP2: yes (staged)
    a rank's rows must be a multiple of 128. te gathers FP8 (two H200s); emulated runs on CPU ranks (tests)
FP8 params with fused: no
    a fused module joins the weights of several linears, which would dequantise them: set fused = false
FP8 params with compile: yes (tried-3)
    te.Linear stays eager as without
FP8 params with checkpointing: yes (tried-3)
    for the emulated backend alone; te's is refused
FP8 params with CPU: yes (parameters)
    the emulated backend
FP8 params with Ada: untried
    for the emulated backend alone: te's block scaling needs Hopper
FP8 params with Hopper: yes (tried-3)
    on record
FP8 params with Blackwell*: untried
    Transformer Engine 2.20 turns its block scales into MXFP8's there, and its own tests expect a failure on
    12.0; not run

# the ways to train: a configuration spreads a model by FSDP2 alone; TP and PP are for a model that is handed over
fp32 * with TP: yes (meshes)
    labkit.parallel.tensor, before the trainer is handed the model
bf16 * with TP: yes (tp)
    week 15's block by hand, and by DTensor
te bf16|te delayed|te current with TP: yes (tp)
    te.Linear(parallel_mode=...), whose features are global sizes; amax is agreed over the tensor-parallel ranks
te block with TP: untried
    te.Linear(parallel_mode=...) as for the other recipes; no record of it
amp * with TP: untried
    plain linears, whose products autocast casts; no record of it
* with TP: no
    a scale needs the amax of the whole tensor, and nothing here agrees it over the tensor-parallel ranks: take
    Transformer Engine, or leave tp at 1
* with EP: no
    every rank multiplies all experts, and FSDP2 shards their weights: nothing here sends a token to another rank's
    expert: leave ep at 1
fp32 * with PP: yes (piped)
    week 15's run_schedule on stages of the decoder
bf16 * with PP: yes (tp)
    the same, each stage under autocast; messages are float32
* with PP: no
    the pipeline here (week 15's run_schedule) has run in fp32 and bf16 alone: leave pp at 1
bf16 *|torchao tensorwise|broken * with FSDP2: yes (demo)
    weights are gathered in BF16 and cast on every rank
fp32 * with FSDP2: yes (job)
    nothing is cast
amp * with FSDP2: yes (amp)
    weights are gathered in FP32, and autocast casts them for each product
emulated block with FSDP2: yes (parameters)
    weights are gathered in BF16
te delayed with FSDP2: yes (8b)
    all ranks take the largest amax of all: Transformer Engine reduces it when autocast ends
te current with FSDP2: yes (8b-current)
    weights are gathered in BF16, and every rank casts what it gathered
te block with FSDP2: yes (staged)
    the same
te * with FSDP2: untried
    one rank is on record, several are not
torchao rowwise*|emulated tensorwise|week16 * with FSDP2: untried
    the same gather as tensorwise's; no record of several ranks
te * with fused: yes (tried)
    a block's norms and SwiGLU inside te's kernels; every linear of the block must be converted
* with fused: no
    fused = true is Transformer Engine's: take backend te, or set fused = false
te * with compile: yes (tried)
    te.Linear stays eager, what lies between the linears is compiled
emulated block with compile|checkpointing: yes (tried-3)
    as tensorwise
fp32 *|bf16 *|torchao *|emulated *|broken * with compile: yes (tried)
    a block is compiled whole
te * with checkpointing: yes (tried)
    by Transformer Engine's own checkpoint, which puts delayed scales back
fp32 *|bf16 *|torchao *|emulated *|broken * with checkpointing: yes (tried)
    scales come from the tensor at hand: nothing to put back
amp * with compile: untried
    the compiler follows autocast; no record of it
amp * with checkpointing: yes (amp)
    torch's checkpoint recomputes under the same autocast
week16 * with compile|checkpointing: untried
    it is your own: an autograd function, which torch can do both to

# the machines
te * with CPU: no
    Transformer Engine has no kernels for a CPU: take backend torchao or emulated
bf16 *|torchao tensorwise|broken * with CPU: yes (demo)
    torchao rounds to real FP8 and multiplies slowly
fp32 *|torchao rowwise*|emulated * with CPU: yes (here)
    real FP8 numbers (but for fp32), multiplied slowly
amp * with CPU: yes (amp)
    FP16 products go through FP32 and are rounded once
amp * with Hopper: untried
    torch's autocast; no record of it
amp fp16 with older: untried
    GPUs have FP16 units from Volta (compute capability 7.0) on; no such GPU was at hand
week16 * with CPU|Hopper: untried
    it is your own
fp32 * with older: untried
    plain torch
* with older: no
    GPUs before Ampere have no BF16 units: take backend fp32, or amp with recipe fp16, or another GPU
te delayed|te current|te block|torchao * with Ampere: no
    FP8 products need units that GPUs have from Ada (compute capability 8.9) on: take backend bf16 or emulated
te block with Ada: no
    block scaling needs Hopper (compute capability 9.0) and CUDA 12.9: take recipe current
torchao rowwise* with Ada: no
    the rowwise FP8 product needs Hopper (compute capability 9.0): take recipe tensorwise
bf16 *|te *|torchao tensorwise|torchao rowwise|broken * with Hopper: yes (check)
    FP8 products on the GPU's own units, but for bf16 and broken
emulated block with Hopper: yes (tried-3)
    on record
fp32 *|torchao *|emulated * with Hopper: yes (tried)
    on record
te block with Blackwell*: untried
    Transformer Engine 2.20 lets it through and gives Blackwell block scales of its own kind (MXFP8)
* with Ampere|Ada|Blackwell*: untried
    should run by its libraries' own tables; no such GPU was at hand
"""


class Cell(NamedTuple):
    """What the table says of a recipe in a column. In RULES both are patterns, several by "|"."""

    recipe: str
    column: str
    state: str
    why: str
    proof: str = ""

    def speaks_of(self, recipe: str, column: str) -> bool:
        pairs = (recipe, self.recipe), (column, self.column)
        return all(any(fnmatchcase(name, pattern) for pattern in patterns.split("|")) for name, patterns in pairs)


RULE = re.compile(r"^(\S.*) with (.+): (yes|untried|no)(?: \((.+)\))?\n((?: .+\n)+)", re.MULTILINE)
RULES = tuple(
    Cell(recipes, columns, state, " ".join(why.split()), PROOFS[proof] if proof else "")
    for recipes, columns, state, proof, why in RULE.findall(TABLE)
)

TE_RECOMPUTES = (
    "in backward Transformer Engine gathers a weight's columns alone, and the forward that is repeated there needs "
    'its rows (seen on an H200, 2.20.2): set activation_checkpointing = "none", or fp8_parameters = false'
)


def cell(recipe: str, column: str) -> Cell:
    """The table's word on "backend recipe" and a column; KeyError: no such column, or no rule (a hole in the table)."""
    if column not in COLUMNS:
        raise KeyError(column)
    rule = next((rule for rule in RULES if rule.speaks_of(recipe, column)), None)
    if rule is None:
        raise KeyError((recipe, column))
    return rule._replace(recipe=recipe, column=column)


def generation(gpu: tuple[int, int] | None) -> str:
    """The column of a machine: None is a CPU; else its compute capability, as (9, 0)."""
    if gpu is None:
        return "CPU"
    return [name for name, (lowest, _) in GENERATIONS.items() if lowest is not None and gpu >= lowest][-1]


def this_gpu(device: str = "cuda") -> tuple[int, int] | None:
    """The compute capability that `refuse` takes: None for a CPU or where torch sees no GPU, else the oldest visible
    GPU's."""
    if device != "cuda":
        return None
    from torch import cuda

    every = range(cuda.device_count()) if cuda.is_available() else ()
    return min((cuda.get_device_capability(k) for k in every), default=None)


def row_of(backend: str, recipe: str | None) -> str:
    """The table's name of a recipe (None: the backend's default); LabError if it has none."""
    default = {"te": "current", "torchao": "tensorwise", "emulated": "tensorwise", "amp": "bf16"}.get(backend, backend)
    name, family = f"{backend} {recipe or default}", f"{backend.partition('-')[0]} *"
    if name not in RECIPES and family not in RECIPES:
        raise LabError(f"the compatibility matrix has no recipe '{name}'; it has: {', '.join(RECIPES)}")
    return name if name in RECIPES else family


def multiple(backend: str, recipe: str) -> int:
    """What dims and tokens must be multiples of under this recipe; 1: anything goes."""
    return RECIPES[row_of(backend, recipe)]


def wanted(config: Any, world: int = 1) -> tuple[str, list[str]]:
    """(recipe of the table, the features that a training config asks for). `config`: a TrainConfig, or the same as
    nested mappings."""
    values = config if isinstance(config, Mapping) else config.model_dump()
    precision = values.get("precision") or {}
    asked = {
        "FSDP2": world > 1,
        "compile": values.get("compile"),
        "checkpointing": values.get("activation_checkpointing", "none") != "none",
        "fused": precision.get("fused"),
        SCHEDULE: precision.get("schedule"),
        PARAMETERS: precision.get("fp8_parameters"),
    }
    known = row_of(precision.get("backend", "bf16"), precision.get("recipe"))
    return known, [column for column, there in asked.items() if there]


def reasons(config: Any, gpu: tuple[int, int] | None, world: int = 1) -> list[str]:
    """Why this config cannot run on this machine, one sentence a conflict; [] if nothing speaks against it."""
    recipe, asked = wanted(config, world)
    columns = (*asked, generation(gpu))
    found = [cell(recipe, column) for column in columns]
    found += [cell(row, column) for row in ROWS if row in asked for column in columns if column != row]
    told: dict[str, Cell] = {}
    for c in found:
        if c.state == NO:
            told.setdefault(c.why, c)  # a schedule with FP8 parameters is forbidden in both their rows
    pairs = [(f"{c.recipe.removesuffix(' *')} and {c.column}", why) for why, c in told.items()]
    if fnmatchcase(recipe, "te *") and PARAMETERS in asked and "checkpointing" in asked:  # no pair tells this
        pairs.append((f"{recipe}, {PARAMETERS} and checkpointing", TE_RECOMPUTES))
    return [f"{pair} do not go together: {why}" for pair, why in pairs]


def refuse(config: Any, gpu: tuple[int, int] | None, world: int = 1) -> None:
    """LabError with every reason if the table says that this config cannot run on this machine; call it before a run.

    config: a TrainConfig or the same as mappings. gpu: what `this_gpu` returns. world: ranks."""
    if found := reasons(config, gpu, world):
        raise LabError("; ".join(found))


def table() -> dict[str, Any]:
    """The whole matrix as JSON: {"recipes": {recipe: {"multiple", "cells": {column: {state, why, proof}}}}, "with":
    {"schedule" or "FP8 params": {"cells"}}, "generations"}."""

    def cells(row: str) -> dict[str, Any]:
        found = [cell(row, column) for column in COLUMNS if column != row]
        return {c.column: {"state": c.state, "why": c.why, "proof": c.proof} for c in found}

    return {
        "recipes": {recipe: {"multiple": dims, "cells": cells(recipe)} for recipe, dims in RECIPES.items()},
        "with": {row: {"cells": cells(row)} for row in ROWS},
        "generations": {
            name: {"from": ".".join(map(str, lowest)) if lowest else None, "examples": examples}
            for name, (lowest, examples) in GENERATIONS.items()
        },
    }

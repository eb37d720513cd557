"""What goes with what: every precision recipe against every way to train, and against every generation of GPUs.

One table, RULES. A rule speaks of the recipes and columns its patterns name; the first that fits decides:

    yes        runs; `proof` is the test or the committed record that shows it
    untried    allowed; nobody has shown it here, and `why` says what is known instead
    no         refused before a run starts, with `why`

`lab doctor --matrix` prints the table, `refuse` enforces it: `lab compare` and the trainer ask it before they start.
What needs the model to be told (dims and tokens that must divide) the backends refuse themselves; the multiples stand
in the table.

Nothing here imports torch, except `this_gpu` for a GPU.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from labkit.errors import LabError

YES, UNTRIED, NO = "yes", "untried", "no"
# "backend recipe"; the multiple of which in and out features and tokens must be
RECIPES = {
    "fp32 fp32": 1, "bf16 bf16": 1, "te bf16": 1, "te delayed": 16, "te current": 16, "te block": 128,
    "torchao tensorwise": 16, "torchao rowwise": 16, "torchao rowwise_with_gw_hp": 16,
    "emulated tensorwise": 16, "broken *": 16, "week16 *": 16,
}
FEATURES = ("FSDP2", "TP", "EP", "PP", "compile", "checkpointing", "fused")
# name -> (lowest compute capability, examples)
GENERATIONS = {
    "CPU": (None, "any"), "older": ((0, 0), "V100, T4"), "Ampere": ((8, 0), "A100, RTX 3090"),
    "Ada": ((8, 9), "L40S, RTX 4090"), "Hopper": ((9, 0), "H100, H200"), "Blackwell": ((10, 0), "B200"),
    "Blackwell RTX": ((12, 0), "RTX 5090"),
}
COLUMNS = (*FEATURES, *GENERATIONS)
_CHECK = "results/2026-11-21-h200-gpu-check-124m"                 # one rank, compiled, Hopper
_DEMO = "results/2026-11-21-cpu-demo"                            # two ranks, CPU
_TRIED = "week16_fp8/results/h200-matrix.json"                   # labkit.matrix_try on one H200
_UNITS = "FP8 products need units that GPUs have from Ada (compute capability 8.9) on: take backend bf16 or emulated"


@dataclass(frozen=True)
class Rule:
    """`recipes` and `columns`: patterns, several by "|"."""
    recipes: str
    columns: str
    state: str
    why: str
    proof: str = ""

    def speaks_of(self, recipe: str, column: str) -> bool:
        return (any(fnmatchcase(recipe, pattern) for pattern in self.recipes.split("|"))
                and any(fnmatchcase(column, pattern) for pattern in self.columns.split("|")))


RULES = (
    # -- the ways to train: this trainer spreads a model by FSDP2 alone
    Rule("te *", "TP", NO,
         "the trainer here has no tensor parallelism (week 15 builds it by hand); Transformer Engine's own"
         " is te.Linear(parallel_mode=...), whose features are global sizes"),
    Rule("*", "TP", NO, "the trainer here has no tensor parallelism (week 15 builds it by hand): leave tp at 1"),
    Rule("*", "EP", NO,
         "the decoder here has no experts, so there is nothing for expert parallelism to spread: leave ep "
         "at 1"),
    Rule("*", "PP", NO, "the trainer here has no pipeline: leave pp at 1"),
    Rule("bf16 *|torchao tensorwise|broken *", "FSDP2", YES,
         "weights are gathered in BF16 and cast on every rank", _DEMO),
    Rule("fp32 *", "FSDP2", YES, "nothing is cast", "tests/train/test_job.py"),
    Rule("te delayed", "FSDP2", UNTRIED,
         "one rank is on record; several ranks take the largest amax of all (Transformer Engine reduces it"
         " when autocast ends), no record of them here"),
    Rule("te *", "FSDP2", UNTRIED, "one rank is on record, several are not"),
    Rule("torchao rowwise*|emulated *|week16 *", "FSDP2", UNTRIED,
         "the same gather as tensorwise's; no record of several ranks"),
    Rule("te *", "fused", YES,
         "a block's norms and SwiGLU inside te's kernels; every linear of the block must be converted", _TRIED),
    Rule("*", "fused", NO, "fused = true is Transformer Engine's: take backend te, or set fused = false"),
    Rule("te *", "compile", YES, "te.Linear stays eager, what lies between the linears is compiled", _TRIED),
    Rule("fp32 *|bf16 *|torchao *|emulated *|broken *", "compile", YES, "a block is compiled whole", _TRIED),
    Rule("te *", "checkpointing", YES,
         "by Transformer Engine's own checkpoint, which puts delayed scales back", _TRIED),
    Rule("fp32 *|bf16 *|torchao *|emulated *|broken *", "checkpointing", YES,
         "scales come from the tensor at hand: nothing to put back", _TRIED),
    Rule("week16 *", "compile|checkpointing", UNTRIED,
         "it is your own: an autograd function, which torch can do both to"),
    # -- the machines
    Rule("te *", "CPU", NO, "Transformer Engine has no kernels for a CPU: take backend torchao or emulated"),
    Rule("bf16 *|torchao tensorwise|broken *", "CPU", YES, "torchao rounds to real FP8 and multiplies slowly", _DEMO),
    Rule("fp32 *|torchao rowwise*|emulated *", "CPU", YES, "real FP8 numbers (but for fp32), multiplied slowly",
         "tests/test_matrix.py"),
    Rule("week16 *", "CPU|Hopper", UNTRIED, "it is your own"),
    Rule("fp32 *", "older", UNTRIED, "plain torch"),
    Rule("*", "older", NO, "GPUs before Ampere have no BF16 units: take backend fp32, or another GPU"),
    Rule("te delayed|te current|te block|torchao *", "Ampere", NO, _UNITS),
    Rule("te block", "Ada", NO,
         "block scaling needs Hopper (compute capability 9.0) and CUDA 12.9: take recipe current"),
    Rule("torchao rowwise*", "Ada", NO,
         "the rowwise FP8 product needs Hopper (compute capability 9.0): take recipe tensorwise"),
    Rule("bf16 *|te *|torchao tensorwise|torchao rowwise|broken *", "Hopper", YES,
         "FP8 products on the GPU's own units, but for bf16 and broken", _CHECK),
    Rule("fp32 *|torchao *|emulated *", "Hopper", YES, "on record", _TRIED),
    Rule("te block", "Blackwell*", UNTRIED,
         "Transformer Engine 2.20 lets it through and gives Blackwell block scales of its own kind (MXFP8)"),
    Rule("*", "Ampere|Ada|Blackwell*", UNTRIED, "should run by its libraries' own tables; no such GPU was at hand"),
)


@dataclass(frozen=True)
class Cell:
    """What the table says of one recipe in one column."""
    recipe: str
    column: str
    state: str
    why: str
    proof: str = ""


def cell(recipe: str, column: str) -> Cell:
    """The table's word on "backend recipe" and a column; KeyError: no such column, or no rule (a hole in the table)."""
    if column not in COLUMNS:
        raise KeyError(column)
    rule = next((rule for rule in RULES if rule.speaks_of(recipe, column)), None)
    if rule is None:
        raise KeyError((recipe, column))
    return Cell(recipe, column, rule.state, rule.why, rule.proof)


def generation(gpu: tuple[int, int] | str | None) -> str:
    """The column of a machine: None is a CPU; a compute capability as (9, 0) or "9.0"; a generation's own name."""
    if gpu is None:
        return "CPU"
    if isinstance(gpu, str):
        if gpu in GENERATIONS:
            return gpu
        try:
            major, minor = (int(part) for part in gpu.split("."))
        except ValueError:
            raise LabError(f"'{gpu}' is no compute capability such as 9.0; generations are: "
                           f"{', '.join(GENERATIONS)}") from None
        gpu = (major, minor)
    return [name for name, (lowest, _) in GENERATIONS.items() if lowest is not None and tuple(gpu) >= lowest][-1]


def this_gpu(device: str = "cuda") -> tuple[int, int] | None:
    """The compute capability that `refuse` takes: None for a CPU or where torch sees no GPU, else the oldest visible
    GPU's."""
    if device != "cuda":
        return None
    import torch
    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.get_device_capability(k) for k in range(torch.cuda.device_count()))


def wanted(config: Any, world: int = 1) -> tuple[str, list[str]]:
    """(recipe of the table, the features that a training config asks for). `config`: a TrainConfig, or the same as
    nested mappings; tp, ep and pp are read where there are any."""
    def get(name: str, default: Any) -> Any:
        value = config
        for part in name.split("."):
            value = value.get(part, None) if isinstance(value, Mapping) else getattr(value, part, None)
        return default if value is None else value
    backend = get("precision.backend", "bf16")
    recipe = get("precision.recipe", None)
    name = f"{backend} {recipe or default_recipe(backend)}"
    known = name if name in RECIPES else f"{backend.partition('-')[0].rstrip('0123456789') or backend} *"
    if backend.startswith("week16"):
        known = "week16 *"
    if known not in RECIPES:
        raise LabError(f"the compatibility matrix has no recipe '{name}'; it has: {', '.join(RECIPES)}")
    asked = ["FSDP2"] if world > 1 else []
    asked += [column for column, key in (("TP", "tp"), ("EP", "ep"), ("PP", "pp")) if int(get(key, 1)) > 1]
    asked += ["compile"] if get("compile", False) else []
    asked += ["checkpointing"] if get("activation_checkpointing", "none") != "none" else []
    asked += ["fused"] if get("precision.fused", False) else []
    return known, asked


def default_recipe(backend: str) -> str:
    """The recipe a backend takes when none is named: the first of its own list."""
    return {"te": "current", "torchao": "tensorwise", "emulated": "tensorwise"}.get(backend, backend)


def reasons(config: Any, gpu: tuple[int, int] | str | None, world: int = 1) -> list[str]:
    """Why this config cannot run on this machine, one sentence a conflict; [] if nothing speaks against it."""
    recipe, asked = wanted(config, world)
    found = [cell(recipe, column) for column in (*asked, generation(gpu))]
    return [f"{recipe.removesuffix(' *')} and {c.column} do not go together: {c.why}" for c in found if c.state == NO]


def refuse(config: Any, gpu: tuple[int, int] | str | None, world: int = 1) -> None:
    """LabError with every reason if the table says that this config cannot run on this machine; call it before a run.

    config: a TrainConfig or the same as mappings. gpu: what `this_gpu` returns. world: ranks."""
    found = reasons(config, gpu, world)
    if found:
        raise LabError("; ".join(found))


def table() -> dict[str, Any]:
    """The whole matrix as JSON: {"recipes": {recipe: {"multiple", "cells": {column: {state, why, proof}}}},
    "generations"}."""
    return {"recipes": {recipe: {"multiple": multiple, "cells": {
        column: {k: v for k, v in asdict(cell(recipe, column)).items() if k not in ("recipe", "column")}
        for column in COLUMNS}} for recipe, multiple in RECIPES.items()},
        "generations": {name: {"from": ".".join(map(str, lowest)) if lowest else None, "examples": examples}
                        for name, (lowest, examples) in GENERATIONS.items()}}


def show(as_json: bool = False) -> None:
    """What `lab doctor --matrix` prints; this machine is found out by nvidia-smi, without CUDA."""
    import json

    from labkit.record import hardware
    found = [gpu["capability"] for gpu in hardware.gpus() if gpu["capability"]]
    here = generation(min(found, key=lambda text: tuple(map(int, text.split("."))))) if found else "CPU"
    if as_json:
        print(json.dumps({"here": here, **table()}, indent=1))
    else:
        render(here=here)


def render(console: Any = None, here: str | None = None) -> None:
    """Print both halves, then what the numbers behind the words mean. here: the generation of this machine, marked
    with *."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    look = {YES: "green", UNTRIED: "yellow", NO: "red"}
    notes: dict[str, int] = {}
    for title, columns in (("Ways to train", FEATURES), ("Machines", tuple(GENERATIONS))):
        shown = Table(box=None, padding=(0, 1), pad_edge=False, title=title, title_justify="left", title_style="bold")
        shown.add_column("recipe", no_wrap=True)
        if columns is FEATURES:
            shown.add_column("dims x", justify="right")
        for column in columns:
            words = {"checkpointing": "check-\npointing", "Blackwell RTX": "Blackwell\nRTX"}
            shown.add_column(words.get(column, column) + ("*" if column == here else ""), no_wrap=True)
        for recipe, multiple in RECIPES.items():
            row: list[Any] = [recipe.removesuffix(" *")] + ([str(multiple)] if columns is FEATURES else [])
            for column in columns:
                said = cell(recipe, column)
                number = f" {notes.setdefault(said.why, len(notes) + 1)}" if said.state != YES else ""
                row.append(Text(("?" if said.state == UNTRIED else said.state) + number, style=look[said.state]))
            shown.add_row(*row)
        console.print(shown)
        console.print()
    for why, number in notes.items():
        console.print(Text(f"{number:2d}  {why}"), soft_wrap=False)
    console.print()
    legend = ("yes: a test or a committed record shows it. ?: allowed, not shown here. no: refused before a run. "
              "dims x: in and out features and tokens must be a multiple of it.")
    console.print(Text(legend + (f" *: this machine ({here})." if here else "")))

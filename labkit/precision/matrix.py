"""What goes with what: every precision recipe against every way to train, and against every generation of GPUs.

One table, RULES (in labkit.precision.matrix_rules). A rule speaks of the recipes and columns its patterns name; the first that
fits decides:

    yes        runs; `proof` is the test or the committed record that shows it
    untried    allowed; nobody has shown it here, and `why` says what is known instead
    no         refused before a run starts, with `why`

`lab doctor --matrix` prints the table, `refuse` enforces it: `lab compare` and the trainer ask it before they start.
Two settings go across the recipes, and have rows of their own beside their columns: a precision schedule, and FP8
parameters. A column says whether a recipe can have it, the row what it does together with the other ways and machines.

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
from labkit.precision.matrix_rules import (
    COLUMNS,
    FEATURES,
    GENERATIONS,
    NO,
    PARAMETERS,
    RECIPES,
    ROWS,
    RULES,
    SCHEDULE,
    TOGETHER,
    UNTRIED,
    YES,
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
            raise LabError(
                f"'{gpu}' is no compute capability such as 9.0; generations are: {', '.join(GENERATIONS)}"
            ) from None
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
    asked += [SCHEDULE] if get("precision.schedule", None) else []
    asked += [PARAMETERS] if get("precision.fp8_parameters", False) else []
    return known, asked


def default_recipe(backend: str) -> str:
    """The recipe a backend takes when none is named: the first of its own list."""
    return {"te": "current", "torchao": "tensorwise", "emulated": "tensorwise"}.get(backend, backend)


def reasons(config: Any, gpu: tuple[int, int] | str | None, world: int = 1) -> list[str]:
    """Why this config cannot run on this machine, one sentence a conflict; [] if nothing speaks against it."""
    recipe, asked = wanted(config, world)
    columns = (*asked, generation(gpu))
    found = [cell(recipe, column) for column in columns]
    for row in (row for row in ROWS if row in asked):
        found += [cell(row, column) for column in columns if column != row]
    told: dict[str, Cell] = {}
    for c in found:
        if c.state == NO:
            told.setdefault(c.why, c)  # a schedule with FP8 parameters is forbidden in both their rows
    sentences = [f"{c.recipe.removesuffix(' *')} and {c.column} do not go together: {why}" for why, c in told.items()]
    sentences += [
        f"{recipe}, {' and '.join(ways)} do not go together: {why}"
        for pattern, ways, why in TOGETHER
        if fnmatchcase(recipe, pattern) and {*ways} <= {*asked}
    ]
    return sentences


def refuse(config: Any, gpu: tuple[int, int] | str | None, world: int = 1) -> None:
    """LabError with every reason if the table says that this config cannot run on this machine; call it before a run.

    config: a TrainConfig or the same as mappings. gpu: what `this_gpu` returns. world: ranks."""
    found = reasons(config, gpu, world)
    if found:
        raise LabError("; ".join(found))


def table() -> dict[str, Any]:
    """The whole matrix as JSON: {"recipes": {recipe: {"multiple", "cells": {column: {state, why, proof}}}}, "with":
    {"schedule" or "FP8 params": {"cells"}}, "generations"}."""

    def cells(row: str) -> dict[str, Any]:
        return {
            column: {k: v for k, v in asdict(cell(row, column)).items() if k not in ("recipe", "column")}
            for column in COLUMNS
            if column != row
        }

    return {
        "recipes": {recipe: {"multiple": multiple, "cells": cells(recipe)} for recipe, multiple in RECIPES.items()},
        "with": {row: {"cells": cells(row)} for row in ROWS},
        "generations": {
            name: {"from": ".".join(map(str, lowest)) if lowest else None, "examples": examples}
            for name, (lowest, examples) in GENERATIONS.items()
        },
    }


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
            words = {
                "checkpointing": "check-\npointing",
                "Blackwell RTX": "Blackwell\nRTX",
                "schedule": "sche-\ndule",
                PARAMETERS: "FP8\nparams",
            }
            shown.add_column(words.get(column, column) + ("*" if column == here else ""), no_wrap=True)
        for recipe, multiple in {**RECIPES, **dict.fromkeys(ROWS, "")}.items():
            row: list[Any] = [ROWS.get(recipe, recipe.removesuffix(" *"))]
            row += [str(multiple)] if columns is FEATURES else []
            for column in columns:
                if column == recipe:
                    row.append("")
                    continue
                said = cell(recipe, column)
                number = f" {notes.setdefault(said.why, len(notes) + 1)}" if said.state != YES else ""
                row.append(Text(("?" if said.state == UNTRIED else said.state) + number, style=look[said.state]))
            shown.add_row(*row)
        console.print(shown)
        console.print()
    for why, number in notes.items():
        console.print(Text(f"{number:2d}  {why}"), soft_wrap=False)
    console.print()
    legend = (
        "yes: a test or a committed record shows it. ?: allowed, not shown here. no: refused before a run. "
        "dims x: in and out features and tokens must be a multiple of it."
    )
    console.print(Text(legend + (f" *: this machine ({here})." if here else "")))

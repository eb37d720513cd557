"""The compatibility matrix: every precision recipe against every way to train, and every generation of machines.

Made of what recipes declare (labkit.precision.recipes); printed by `lab doctor --matrix`, enforced by `refuse`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from labkit.errors import LabError
from labkit.precision import recipes
from labkit.precision.recipes import ACROSS, FEATURES, GENERATIONS, NO, PARAMETERS, SCHEDULE, UNTRIED, YES, Capability
from labkit.record import hardware

COLUMNS = (*FEATURES, *GENERATIONS)
ROWS = {f"{b} {r}": entry for b, some in recipes.RECIPES.items() for r, entry in some.items()}


class Cell(NamedTuple):
    """What the matrix says of a row ("backend recipe", or one of ACROSS) in a column."""

    recipe: str
    column: str
    state: str
    why: str
    proof: str = ""


class Conflict(NamedTuple):
    """A recipe or a setting, what it was combined with, and why they do not go together."""

    who: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{', '.join(self.who[:-1])} and {self.who[-1]} do not go together: {self.why}"


def cell(row: str, column: str, gpu: Capability | None = None) -> Cell:
    """The matrix's word; KeyError: no such row or column. gpu: the capability, by default its generation's lowest."""
    entry = (ROWS | recipes.SETTINGS)[row]
    word = entry.word(column)
    if column in GENERATIONS:
        gpu = gpu or GENERATIONS[column]
        if gpu is None and entry.no_cpu:
            word = recipes.refused(entry.no_cpu)
        elif gpu is not None and (need := recipes.lacks(entry.needs, gpu)):
            word = recipes.refused(f"{need.why}: {need.fix}")
    return Cell(row, column, *word)


def generation(gpu: Capability | None) -> str:
    """The column of a machine: None is a CPU; else its compute capability, as (9, 0)."""
    if gpu is None:
        return "CPU"
    return next((name for name, lowest in reversed(GENERATIONS.items()) if lowest and gpu >= lowest), "older")


def this_gpu(device: str = "cuda") -> Capability | None:
    """The compute capability that `refuse` takes: the oldest visible GPU's; None for a CPU."""
    if device != "cuda":
        return None
    from torch import cuda

    every = range(cuda.device_count()) if cuda.is_available() else ()
    return min((cuda.get_device_capability(k) for k in every), default=None)


def requested(config: Any, world: int = 1) -> tuple[str, list[str]]:
    """(the recipe's row, the features that a training config configures). `config`: a TrainConfig, or nested mappings."""
    values = config if isinstance(config, Mapping) else config.model_dump()
    precision = values.get("precision") or {}
    features = {
        "FSDP2": world > 1,
        "compile": values.get("compile"),
        "checkpointing": values.get("activation_checkpointing", "none") != "none",
        "fused": precision.get("fused"),
        SCHEDULE: precision.get("schedule"),
        PARAMETERS: precision.get("fp8_parameters"),
    }
    row, _ = recipes.find_recipe(precision.get("backend", "bf16"), precision.get("recipe"))
    return row, [column for column, there in features.items() if there]


def conflicts(config: Any, gpu: Capability | None, world: int = 1) -> list[Conflict]:
    """Why this config cannot run on this machine; [] if it can. gpu: what `this_gpu` returns."""
    recipe, features = requested(config, world)
    columns = (*features, generation(gpu))
    rows = [recipe, *(row for row in ACROSS if row in features)]
    found: dict[str, Conflict] = {}
    for c in (cell(row, column, gpu) for row in rows for column in columns if column != row):
        if c.state == NO:  # what two rows forbid for one reason is said once
            found.setdefault(c.why, Conflict((c.recipe.removesuffix(" *"), c.column), c.why))
    apart = [
        Conflict((recipe, *several), why) for several, why in ROWS[recipe].apart.items() if {*several} <= {*features}
    ]
    return [*found.values(), *apart]


def refuse(config: Any, gpu: Capability | None, world: int = 1) -> None:
    """LabError with every conflict, if there is one; call it before a run."""
    if found := conflicts(config, gpu, world):
        raise LabError("; ".join(map(str, found)))


def show() -> None:
    """Print both halves, then the reasons that the numbers in them name; * marks this machine's column."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Found without CUDA, and without torch.
    found = [gpu["capability"].split(".") for gpu in hardware.gpus() if gpu["capability"]]
    here = generation(min(((int(major), int(minor)) for major, minor in found), default=None))
    console = Console()
    narrow = {"checkpointing": "check-\npointing", "Blackwell RTX": "Blackwell\nRTX", SCHEDULE: "sche-\ndule"}
    narrow[PARAMETERS] = "FP8\nparams"
    style = {YES: "green", UNTRIED: "yellow", NO: "red"}
    notes: dict[str, int] = {}
    for title, columns in (("Ways to train", FEATURES), ("Machines", tuple(GENERATIONS))):
        shown = Table(box=None, padding=(0, 1), pad_edge=False, title=title, title_justify="left", title_style="bold")
        shown.add_column("recipe", no_wrap=True)
        shown.add_column("dims x", justify="right")
        for column in columns:
            shown.add_column(narrow.get(column, column) + ("*" if column == here else ""), no_wrap=True)
        for row in (*ROWS, *ACROSS):
            dims = str(ROWS[row].multiple) if row in ROWS else ""
            line: list[Any] = [ACROSS.get(row, row.removesuffix(" *")), dims]
            for column in columns:
                if column == row:
                    line.append("")
                    continue
                word = cell(row, column)
                number = f" {notes.setdefault(word.why, len(notes) + 1)}" if word.state != YES else ""
                line.append(Text(("?" if word.state == UNTRIED else word.state) + number, style=style[word.state]))
            shown.add_row(*line)
        console.print(shown)
        console.print()
    for why, note in notes.items():
        console.print(Text(f"{note:2d}  {why}"), soft_wrap=False)
    console.print()
    legend = (
        "yes: a test or a committed record shows it. ?: allowed, not shown here. no: refused before a run. "
        f"dims x: in and out features and tokens must be a multiple of it. *: this machine ({here})."
    )
    console.print(Text(legend))

"""Printing the compatibility matrix: `lab doctor --matrix`."""

from __future__ import annotations

import json
from typing import Any

from labkit.precision import matrix
from labkit.record import hardware

_NARROW = {"checkpointing": "check-\npointing", "Blackwell RTX": "Blackwell\nRTX", "schedule": "sche-\ndule"}
_NARROW[matrix.PARAMETERS] = "FP8\nparams"


def show(as_json: bool = False) -> None:
    """What `lab doctor --matrix` prints; this machine is found out by nvidia-smi, without CUDA."""
    found = [gpu["capability"].split(".") for gpu in hardware.gpus() if gpu["capability"]]
    here = matrix.generation(min(((int(major), int(minor)) for major, minor in found), default=None))
    if as_json:
        print(json.dumps({"here": here, **matrix.table()}, indent=1))
    else:
        render(here=here)


def render(console: Any = None, here: str | None = None) -> None:
    """Print both halves, then what the numbers behind the words mean. here: the generation of this machine, marked
    with *."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    look = {matrix.YES: "green", matrix.UNTRIED: "yellow", matrix.NO: "red"}
    notes: dict[str, int] = {}
    for title, columns in (("Ways to train", matrix.FEATURES), ("Machines", tuple(matrix.GENERATIONS))):
        shown = Table(box=None, padding=(0, 1), pad_edge=False, title=title, title_justify="left", title_style="bold")
        shown.add_column("recipe", no_wrap=True)
        if columns is matrix.FEATURES:
            shown.add_column("dims x", justify="right")
        for column in columns:
            shown.add_column(_NARROW.get(column, column) + ("*" if column == here else ""), no_wrap=True)
        for recipe in (*matrix.RECIPES, *matrix.ROWS):
            row: list[Any] = [matrix.ROWS.get(recipe, recipe.removesuffix(" *"))]
            row += [str(matrix.RECIPES.get(recipe, ""))] if columns is matrix.FEATURES else []
            for column in columns:
                if column == recipe:
                    row.append("")
                    continue
                said = matrix.cell(recipe, column)
                number = f" {notes.setdefault(said.why, len(notes) + 1)}" if said.state != matrix.YES else ""
                row.append(Text(("?" if said.state == matrix.UNTRIED else said.state) + number, style=look[said.state]))
            shown.add_row(*row)
        console.print(shown)
        console.print()
    for why, note in notes.items():
        console.print(Text(f"{note:2d}  {why}"), soft_wrap=False)
    console.print()
    legend = (
        "yes: a test or a committed record shows it. ?: allowed, not shown here. no: refused before a run. "
        "dims x: in and out features and tokens must be a multiple of it."
    )
    console.print(Text(legend + (f" *: this machine ({here})." if here else "")))

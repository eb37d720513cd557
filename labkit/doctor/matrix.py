"""Printing the compatibility matrix: `lab doctor --matrix`."""

from __future__ import annotations

import json
from typing import Any

from labkit.precision.matrix import (
    FEATURES,
    GENERATIONS,
    NO,
    PARAMETERS,
    RECIPES,
    ROWS,
    UNTRIED,
    YES,
    cell,
    generation,
    table,
)
from labkit.record import hardware


def show(as_json: bool = False) -> None:
    """What `lab doctor --matrix` prints; this machine is found out by nvidia-smi, without CUDA."""
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
        for recipe in (*RECIPES, *ROWS):
            row: list[Any] = [ROWS.get(recipe, recipe.removesuffix(" *"))]
            row += [str(RECIPES.get(recipe, ""))] if columns is FEATURES else []
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
    for why, note in notes.items():
        console.print(Text(f"{note:2d}  {why}"), soft_wrap=False)
    console.print()
    legend = (
        "yes: a test or a committed record shows it. ?: allowed, not shown here. no: refused before a run. "
        "dims x: in and out features and tokens must be a multiple of it."
    )
    console.print(Text(legend + (f" *: this machine ({here})." if here else "")))

"""What an instructor types out of habit and a command cannot mean: told in the words that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import typer

from labkit.errors import LabError


def understandable(words: Sequence[str]) -> None:
    """LabError for a week in two words, and for a download without --from: click says only what it did not expect."""
    if {"--help", "-h"} & set(words):
        return
    for one, other in pairwise(words):
        if one.lower() == "week" and other.isdigit():
            raise LabError(f"a week's name is one word: week{other}")
    if len(words) > 2 and words[0] == "collect" and not any(word.partition("=")[0] == "--from" for word in words):
        if words[1].startswith("-") or words[2].startswith("-"):
            return
        raise LabError(f"the download goes behind --from: grade collect {words[1]} --from {words[2]}")


def fraction(value: float | None) -> float | None:
    """The callback of an option that is a fraction. BadParameter for a percentage."""
    if value is not None and not 0 <= value <= 1:
        told = f": {value / 100:g} for {value:g} %" if 1 < value <= 100 else ""
        raise typer.BadParameter(f"a fraction from 0 to 1{told}")
    return value

"""What a number written in FP8 means: the settings a checkpoint carries, and what happens where two runs disagree.

They are read from the library's own objects, since a default can change with a version or an environment variable:

    backend, recipe      "te", "block"
    forward, backward    the formats of activations and weights, and of gradients: "e4m3", "e5m2", None for BF16
    scaling, block       "tensor", "row", "block", "delayed" or None; values that share a scale along the sum
    power_of_two         are scales rounded down to powers of two? One word, or by operand
    amax_epsilon         the least amax that a scale is made from, likewise
    fp8_parameters       are the weights themselves FP8, with FP32 master weights in the optimizer?
    phase                "fp8" or "bf16": what the linears computed in when the checkpoint was written
"""

from collections.abc import Mapping
from typing import Any

NAMES = {  # compared in this order
    "forward": "the forward's format",
    "backward": "the gradients' format",
    "scaling": "scaling per",
    "block": "a block length of",
    "power_of_two": "power-of-two scales:",
    "amax_epsilon": "an amax epsilon of",
}
HIGH = dict.fromkeys(NAMES)  # nothing is FP8
OPERANDS = ("input", "weight", "gradient")  # of a linear's three products: x, w and dL/dy


def compact(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Flags in which what all operands have alike is said once: {"amax_epsilon": {"input": 0.0, ...}, ...} -> 0.0."""
    return {
        key: value["input"] if isinstance(value, Mapping) and len({value[o] for o in OPERANDS}) == 1 else value
        for key, value in numbers.items()
    }


def of_operand(flag: Any, operand: str) -> Any:
    """A flag's value for one operand."""
    return flag[operand] if isinstance(flag, Mapping) else flag


def title(flags: Mapping[str, Any]) -> str:
    """ "te block"; "bf16" where backend and recipe are one."""
    return " ".join(dict.fromkeys(str(flags[key]) for key in ("backend", "recipe") if flags.get(key)))


def other_parameters(was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str | None:
    """A whole sentence without its stop if one side has FP8 parameters and the other has not, else None."""
    if not was or not now or was["fp8_parameters"] == now["fp8_parameters"]:
        return None
    kinds = {True: "FP8 parameters", False: "parameters in high precision"}
    holds, has = (f"{kinds[flags['fp8_parameters']]} ({title(flags)})" for flags in (was, now))
    set_to, to = ("true", "bf16") if was["fp8_parameters"] else ("false", "fp8")
    convert = f"convert a copy for this run, `lab checkpoint convert OLD_RUN NEW_RUN --to {to}`"
    return f"it holds {holds} and this run has {has}: set fp8_parameters = {set_to} in [precision], or {convert}"


def mismatch(was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str | None:
    """The first thing in which a checkpoint's precision differs from this run's, a sentence without its end."""
    if not was or not now:
        return None
    if title(was) != title(now):
        return f"it was trained by {title(was)} and this run computes by {title(now)}"
    for key, name in NAMES.items():
        if was.get(key) != now.get(key):
            here = f"{in_words(now.get(key))}, by another library version or environment variable"
            return f"it was trained with {name} {in_words(was.get(key))} ({title(was)}) and this run has {here}"
    if was.get("phase") != now.get("phase"):
        here = f"the {now['phase']} phase at that step"
        return f"it was saved in the {was['phase']} phase of its schedule and this run is in {here}"
    return None


def in_words(value: Any) -> str:
    """A flag's value for a sentence."""
    if isinstance(value, Mapping):
        return ", ".join(f"{operand} {in_words(value[operand])}" for operand in OPERANDS)
    return {None: "none", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)

"""The four weeks' parts, by name: yours; or, where a task is not finished, the reference that your course handed out.

    part("week14_fsdp.fsdp")        the module: from the week's folder, else from solutions/
    stand_ins()                     {"week14_fsdp.fsdp": "Task 14.4"}: what the reference stands in for, for the record

A part is unfinished while one of the functions that the capstone needs of it still raises its NotImplementedError: that
is read from the source, nothing runs for it. Without a reference the blank says which task it is, when it is reached.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

# module: what the capstone needs of it
NEEDED: dict[str, tuple[str, ...]] = {
    "week14_fsdp.zero": (),  # what it takes of it is given
    "week14_fsdp.fsdp": ("FlatParameter", "FSDP"),
    "week15_tp_attention.linears": ("Copy", "Reduce"),
    "week15_tp_attention.attention": ("split_heads", "slice_weights"),
    "week15_tp_attention.vocab": ("parallel_embedding", "CrossEntropy", "parallel_head_loss"),
    "week15_tp_attention.pipeline": ("one_f_one_b", "run_schedule"),
    "week16_fp8.casts": ("scale_of",),
    "week16_fp8.delayed": ("reduce_amax",),
    "week16_fp8.linear": ("rounding", "FP8Product", "FP8Linear"),
    "week16_fp8.convert": ("convert",),
    "week16_fp8.loss_scaling": ("Recovery",),
}
TENSOR_CORES = "week16_fp8.stretch.tensor_cores"  # of no points: what a run asks for by products = "tensor-cores"
_BLANK = re.compile(r"""raise NotImplementedError\(["'](Task \d+\.\d+)""")
_SOLUTIONS = "solutions"


@cache
def part(name: str) -> ModuleType:
    """The module of a week, or its reference in solutions/ while it is unfinished and one is there."""
    if unfinished(name) and _there(f"{_SOLUTIONS}.{name}"):
        return importlib.import_module(f"{_SOLUTIONS}.{name}")
    return importlib.import_module(name)


def stand_ins() -> dict[str, str]:
    """{module: the first unfinished task} of all parts that the reference stands in for now."""
    return {name: task for name in NEEDED if (task := unfinished(name)) and _there(f"{_SOLUTIONS}.{name}")}


@cache
def unfinished(name: str) -> str:
    """ "Task 14.4" if a function that is needed of this module is still a blank; else ""."""
    needed = ("both_ways", "product", "TensorCoreProduct") if name == TENSOR_CORES else NEEDED[name]
    spec = importlib.util.find_spec(name) if needed else None
    if spec is None or spec.origin is None:
        return ""
    # By lines, not by a parser: CPython 3.11's is not made for ranks that are threads.
    for piece in re.split(r"^(?=def |class |@)", Path(spec.origin).read_text(encoding="utf-8"), flags=re.MULTILINE):
        head = re.match(r"(?:def|class) (\w+)", piece)
        if head and head[1] in needed and (blank := _BLANK.search(piece)):
            return blank[1]
    return ""


def _there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False

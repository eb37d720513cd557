"""How a task is judged: what a week's test file imports, and `check("13.4")` for a notebook.

A check calls the student's function, which runs elsewhere, and judges what came back:

    @task("13.14", points=0)                        # the task, and the test's share of its points
    @pytest.mark.parametrize("N", [2, 5])           # cases share the points
    def test_it(N, seed):                           # seed: of this test's random data
        \"""What is asked for, in a line\"""
        L = Draw(seed, "length").size(20, 90)       # labkit.checks.drawn
        x = tensors(seed, N, L)                     # a vector for each rank, whole numbers: sums are exact
        got, ledgers = call("stretch.tree.tree_all_reduce", x, op="sum", in_place=True)     # group= is given
        for r in range(N):
            same(got[r], want, rank=r, tol=0.0, looks_like={"a mistake, in a sentence": what_it_gives})
            same(got.inputs[r][0], want, rank=r, what="x after the call")
            sent(ledgers[r], steps=4, at_most=16 * L, at_least=1, to=(r + 1) % N, forbid=LIBRARY)

    call            on len(inputs) ranks; `in_place`: it may write to its inputs. `call_alone`, `call_each`: no group
    same            a tensor, number or list is what is wanted. `close` (labkit.checks.judge): within roundings
    field, expect   of a named tuple that came back; anything else: `expect(ok, "what is wrong")`
    sends, sent     [(to, bytes)] of a rank's messages; what they may be. LIBRARY: the built-in collectives
    once            of a function of the seed that is slow: its value is kept for a whole class

A function in the week's `scenarios.py` runs on the ranks, beside the student's, where a check needs more than one call.
`labkit.comm.wire.replay(ledgers, Topology.switch(N, 1.0, 1e18)).time`: how many messages one behind another it took.
"""

import importlib
from typing import Any

# Lazy, so that `lab --help` does not pay for torch, and a test file has one place to import from.
_MODULES = {
    "drawn": ("tensors",),
    "expected": ("once",),
    "judge": ("same", "field", "expect"),
    "pytest_run": ("run_checks",),
    "results": ("check",),
    "runner": ("call", "call_alone", "call_each"),
    "tasks": ("task", "load_week", "find_weeks"),
    "traffic": ("sent", "sends"),
    "verdict": ("CheckFailed",),
}
_PUBLIC = {name: f"labkit.checks.{module}" for module, names in _MODULES.items() for name in names}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)

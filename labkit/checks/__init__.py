"""How a task is judged: what a week's test file imports, and `check("13.4")` for a notebook.

A check calls the student's function, which runs elsewhere, and judges what came back. All names are labkit.checks':

    @task("13.20", points=0)                        # the task, and the test's share of its points
    @pytest.mark.parametrize("N", [2, 5])           # cases share the points
    def test_it(N, seed):                           # seed: of this test's random data
        \"""What is asked for, in a line\"""
        L = Draw(seed, "length").size(20, 90)
        x = tensors(seed, N, L)                     # a vector for each rank, of whole numbers: sums are exact
        got, ledgers = call("stretch.tree.tree_all_reduce", x, op="sum", in_place=True)     # group= is given: a
                                                    # labkit.comm.group.Group, with send, recv, sendrecv, ...
        for r in range(N):
            same(got[r], want, rank=r, tol=0.0, looks_like={"a mistake, in a sentence": what_it_gives})
            same(got.inputs[r][0], want, rank=r, what="x after the call")
            sent(ledgers[r], steps=4, at_most=16 * L, at_least=1, to=(r + 1) % N, forbid=LIBRARY)

    call            (name, inputs, *, in_place=False, shared=False, **arguments): on len(inputs) ranks. An entry that is a
                    tuple is several arguments. in_place: it may write to them; `got.inputs[r]` holds them afterwards.
                    A run that hangs, crashes or gives no answer fails the test by itself
    call_alone      (name, *arguments): without a group, in one process; call_each(name, tuples): once with each,
                    in an order of the seed's
    same            (got, want, *, rank, looks_like, tol, what): type, shape, dtype and numbers of a tensor; a number; a
                    list. A loop over ranks ends at the first wrong one: its cause must be true there. With roundings:
                    labkit.checks.judge.close
    expect, field   expect(ok, "what is wrong", cause=(), known=True); field(got, "share") of a named tuple
    sent            (ledger, *, steps, at_most, at_least, to, forbid, looks_like): calls that sent something, bytes, the
                    only peer, kinds of calls. LIBRARY: the built-in collectives
    sends           (ledger): [(to, bytes)] of a rank's messages, in order, to compare with a list of your own
    Draw            (seed, *words): .size(least, most), .whole(*shape), .normal(*shape), .order(values)
    tensors         (seed, N, L, dtype=float32, whole=True): N vectors
    once            of a slow function of the seed: its value is kept for a whole class

What needs more than one call (a refusal, a second call, a part of the ranks, writing into what came back) is a function in
the week's `scenarios.py`: it runs on the ranks, beside the student's. `labkit.comm.wire.replay(ledgers, Topology.switch(N, 1.0, 1e18)).time` is how
many messages one behind another a run took.
"""

import importlib
from typing import Any

# Lazy, so that `lab --help` does not pay for torch, and a test file has one place to import from.
_MODULES = {
    "drawn": ("Draw", "tensors"),
    "expected": ("once",),
    "judge": ("same", "field", "expect"),
    "pytest_run": ("run_checks",),
    "results": ("check",),
    "runner": ("call", "call_alone", "call_each"),
    "tasks": ("task", "load_week", "find_weeks"),
    "traffic": ("LIBRARY", "sent", "sends"),
    "verdict": ("CheckFailed",),
}
_PUBLIC = {name: f"labkit.checks.{module}" for module, names in _MODULES.items() for name in names}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)

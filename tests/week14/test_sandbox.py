"""Week 14 in the grading sandbox: a rank's memory is what it holds, whatever torch knows of it."""

import shutil

import pytest

from grading.sandbox import watch
from grading.sandbox.runner import SandboxRunner
from labkit.checks import load_week
from labkit.checks.runner import Case, use
from labkit.checks.verdict import CheckFailed
from tests.edits import bare
from tests.judged import ROOT, cases_of, judge, package
from tests.mutant import Mutant
from week14_fsdp.given.weighed import judge_weighed
from week14_fsdp.test_fsdp import memory_case
from week14_fsdp.test_zero import UNCLIPPED, judge_memory, zero_case

DEADLINE = 60.0  # seconds for a call, on a machine that may be busy with other things


# ---- what a rank holds

WAIT = ("14.4", "fsdp", "FlatParameter.wait", "        self.handle, self.whole = None, True\n")
COPY = """        self.handle, self.whole = None, True
        import ctypes
        n = self.full.numel() * self.full.element_size()
"""
HEAP = "        self.kept = ctypes.string_at(self.full.data_ptr(), n)\n"
PIECES = """        at = self.full.data_ptr()
        self.kept = [ctypes.string_at(at + i, min(4000, n - i)) for i in range(0, n, 4000)]
"""
MAPPED = """        import mmap
        self.kept = mmap.mmap(-1, n, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.kept[:] = ctypes.string_at(self.full.data_ptr(), n)
"""
HIDDEN = [  # the meter of storages does not see these
    Mutant("in the heap", *WAIT, COPY + HEAP),
    Mutant("in small pieces", *WAIT, COPY + PIECES),
    Mutant("outside the heap", *WAIT, COPY + MAPPED),
    Mutant("instead of ballast", *WAIT, COPY + "        global BALLAST\n        BALLAST = None\n" + HEAP),
]
NOISE = Mutant(
    "garbage of all sizes",
    *WAIT,
    """        self.handle, self.whole = None, True
        import random
        junk = [bytearray(random.randrange(1, 60_000)) for _ in range(50)]
        self.odd = junk[7]
        del junk, {i: str(i) for i in range(2000)}[0]
        torch.randn(random.randrange(1, 20_000))
""",
)


@pytest.fixture(scope="module")
def boxed(tmp_path_factory):
    """A sandbox on a copy of the week, and a function that puts an edit of a module there."""
    week, folder = load_week(ROOT / "week14_fsdp"), tmp_path_factory.mktemp("boxed")
    aside = shutil.ignore_patterns("__pycache__", "results", "*.ipynb")
    shutil.copytree(week.folder, folder / week.package, ignore=aside)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for parent in list(folder.parents)[:2]:
        parent.chmod(0o755)

    def edit(mutant):
        for name in ("fsdp", "zero"):
            right = (week.folder / f"{name}.py").read_text()
            edited = mutant is not None and mutant.module == name
            ballast = "\n\nBALLAST: object = b'x' * (9 << 20)\n" if edited and "ballast" in mutant.name else ""
            code = mutant.apply(right) if edited else bare(right)
            (folder / week.package / f"{name}.py").write_text(code + ballast)

    with SandboxRunner(folder, deadline=DEADLINE, budget=10_000.0) as runner:
        yield week, runner, edit


def bytes_left(boxed, mutant, seed, checkpointed):
    """Bytes that were left, as read from outside; CheckFailed if that is none. The meter is not asked."""
    week, runner, edit = boxed
    edit(mutant)
    with use(runner, Case(runner.folder, week.package, task="14.4", timeout=DEADLINE)):
        _, _, _, ledgers, _, sizes = memory_case(seed, checkpointed)
    assert all(len(ledger.weighed) >= 2 * 2 * 8 for ledger in ledgers)
    return min(judge_weighed(ledger, sum(sizes), sizes[0], sizes[1], 8, 2) for ledger in ledgers), sizes[1]


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [None, NOISE], ids=lambda m: m.name if m else "the reference")
@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
def test_an_honest_rank_has_bytes_left(boxed, mutant, checkpointed):
    left, block = bytes_left(boxed, mutant, 20 + checkpointed, checkpointed)
    assert left > block / 2


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", HIDDEN, ids=lambda m: m.name)
def test_whoever_keeps_the_blocks_is_heavier(boxed, mutant):
    for checkpointed in (False, True):
        with pytest.raises(CheckFailed, match="its processes hold"):
            bytes_left(boxed, mutant, 30, checkpointed)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", HIDDEN[:2], ids=lambda m: m.name)
def test_the_meter_alone_does_not_see_it(mutant, tmp_path):
    """Else the reading would be for nothing."""
    week = load_week(ROOT / "week14_fsdp")
    runner = package(tmp_path, week, mutant)
    try:
        cases = [case for case in cases_of(week.folder) if case.name.startswith("test_fsdp_memory")]
        assert len(cases) == 2 and all(judge(case, 3, runner, week, DEADLINE) is None for case in cases)
    finally:
        runner.close()


@pytest.mark.thorough
def test_a_file_is_no_hiding_place(boxed):
    keep = COPY + "        open(f'/tmp/{id(self)}', 'wb').write(ctypes.string_at(self.full.data_ptr(), n))\n"
    with pytest.raises(CheckFailed) as refused:
        bytes_left(boxed, Mutant("a file", *WAIT, keep), 40, False)
    assert refused.value.verdict == "crashed" and "OSError" in refused.value.text


# ---- what an optimizer holds

MOMENTS = ("14.3", "zero", "ShardedAdamW.__init__", "        self.v = self.params[0].new_zeros(self.S)\n")
NUMPY = """        self.v = self.params[0].new_zeros(self.S)
        import numpy as np
        self.kept = [np.ones(P), np.ones(P)]
"""
IN_PIPES = """        self.v = self.params[0].new_zeros(self.S)
        import fcntl, os
        self.kept = [os.pipe() for _ in range(8 * P >> 16)]  # as FP32: there are 256 files
        for _, end in self.kept:
            os.set_blocking(end, False)
            os.write(end, bytes(1 << 16))
"""
# A rank is born with sympy. What it frees of it are pages that it has, and that it shares as long as it does not write.
IN_THE_FREED = """        self.v = self.params[0].new_zeros(self.S)
        import gc, sys
        for name in [one for one in sys.modules if one.startswith(("sympy", "torch._dynamo", "torch._inductor"))]:
            vars(sys.modules.pop(name)).clear()
        gc.unfreeze()
        gc.collect()
        self.kept = [bytes([number % 256]) * 400 for number in range(8 * P // 400)]
"""
UNSEEN = [  # `owned` does not see these
    Mutant("moments in NumPy", *MOMENTS, NUMPY),
    Mutant("moments instead of ballast", *MOMENTS, "        global BALLAST\n        BALLAST = None\n" + NUMPY),
    Mutant("moments in pipes", *MOMENTS, IN_PIPES),
    Mutant("moments in what it was born with", *MOMENTS, IN_THE_FREED),
]


def judged_memory(boxed, mutant):
    week, runner, edit = boxed
    edit(mutant)
    with use(runner, Case(runner.folder, week.package, task="14.3", timeout=DEADLINE)):
        weights, _, got, ledgers = zero_case(50, 4, large=True)
    P = sum(t.numel() for t in weights.values())
    assert all(len(ledger.weighed) == len(UNCLIPPED) for ledger in ledgers)
    for ledger, (_, _, held, _) in zip(ledgers, got):
        assert held <= 24 * -(-P // 4) + 256
        judge_memory(ledger, P, -(-P // 4))


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [None, *UNSEEN], ids=lambda m: m.name if m else "the reference")
def test_moments_that_torch_does_not_know_of(boxed, mutant):
    if mutant is None:
        judged_memory(boxed, mutant)
        return
    with pytest.raises(CheckFailed, match="its processes hold"):
        judged_memory(boxed, mutant)


@pytest.mark.thorough
def test_what_is_resident_does_not_show_what_was_freed(boxed, monkeypatch):
    """Else counting the pages that were written to would be for nothing."""
    read = watch._read
    monkeypatch.setattr(watch, "_read", lambda path: "" if path.endswith("smaps_rollup") else read(path))
    judged_memory(boxed, UNSEEN[-1])

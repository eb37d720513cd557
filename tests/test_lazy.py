"""No lazy answer earns a point: every blank of a task filled by the same one line, and no case of the task passes.

Ranks are threads here. C.2 and C.3 need processes, and are left out.
"""

import re
import shutil
import sys

import pytest

from labkit.checks import load_week
from tests.judged import ROOT, ThreadRunner, cases_of, judge

pytestmark = pytest.mark.thorough

GIVEN = "[v for k, v in locals().items() if k not in ('self', 'cls', 'ctx', 'group')]"
LAZY = {
    "nothing": "return None",
    "0": "return 0",
    "infinity": "return float('inf')",
    "an empty list": "return []",
    "what it was given": f"return ({GIVEN} + [None])[0]",
    "zeros": f"return next((v * 0 for v in {GIVEN} if hasattr(v, 'numel')), 0)",
    "a refusal that names every number": "from labkit.errors import LabError; raise LabError(str(locals()))",
}
BLANK = re.compile(r"^( *)### BEGIN SOLUTION (\S+).*\n((?:.*\n)*?) *### END SOLUTION.*$", re.MULTILINE)


def filled(text: str, task: str, line: str) -> tuple[str, int]:
    """A module with one line in place of each of the task's solutions, and their number. A class without its methods."""

    def fill(found: re.Match) -> str:
        nonlocal count
        indent, of, solution = found.groups()
        if of != task:
            return found[0]
        count += 1
        return indent + ("pass" if re.match(r" *(def|class|@)\b", solution) else line)

    count = 0
    return BLANK.sub(fill, text), count


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("name", ["week13_allreduce", "week14_fsdp", "week15_tp_attention", "week16_fp8", "capstone"])
def test_a_lazy_answer_earns_nothing(name, lazy, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # ranks are ended wherever they are: in a __del__, too
    week, passed = load_week(ROOT / name), []
    cases = [c for c in cases_of(ROOT / name) if week.task(c.task).points and c.task not in ("C.2", "C.3")]
    for task in {case.task for case in cases}:
        package = tmp_path / task / week.package
        shutil.copytree(ROOT / name, package, ignore=shutil.ignore_patterns("__pycache__", "results"))
        blanks = 0
        for module in package.rglob("*.py"):
            text, count = filled(module.read_text(), task, LAZY[lazy])
            module.write_text(text)
            blanks += count
        assert blanks, task
        runner = ThreadRunner(tmp_path / task, week.package)
        try:
            passed += [case.name for case in cases if case.task == task and judge(case, 5, runner, week, 3.0) is None]
        finally:
            runner.close()
    assert passed == []

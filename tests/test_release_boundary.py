"""What a task of week 16 asks for exists in the week's folder alone: labkit, which students read, holds no answer, and
works while every blank is open."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import labkit
from labkit.checks.markers import blanks, strip

ROOT = Path(labkit.__file__).parents[1]
WEEK = ROOT / "week16_fp8"
PARTS = ("formats.py", "scaling.py", "blockwise.py", "casts.py", "delayed.py", "linear.py")

# The formats' numbers: largest values, where they saturate, smallest ones, biases as masks. Who computes codes or
# scales by hand needs one of them; torch.finfo in their place is for clamping before torch's own cast.
NUMBERS = {448, 57344, 464, 61440, 2.0**-6, 2.0**-9, 2.0**-14, 2.0**-16, 0x7F800000}
NAMES = {"encode", "decode", "quantise", "scale_for", "scale_from_amax", "block_scale", "on_grid", "delayed_scale"}
ALLOWED = {
    "labkit/precision/probe.py": {"saturating", "saturates_above"},  # the one clamp and cast; where a cast saturates
    "labkit/plan/search.py": {"powers"},  # degrees of parallelism
}


def answers(source: str, allowed: set[str] = frozenset()) -> set[str]:
    """What in a module computes FP8 codes, values or scales by hand: the week's names; the formats' numbers; a largest
    value that divides or is divided; the exponent of a number, of which MX and power-of-two scales are made."""
    found = set()
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in NAMES:
            found.add(node.name)
    mentions_fp8 = "float8" in source or "fp8" in source.lower()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in allowed:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value in NUMBERS:
                found |= {f"{function.name}: {node.value}"} if mentions_fp8 else set()
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                sides = ast.unparse(node.left), ast.unparse(node.right)
                if any("finfo" in side or side.endswith(".max") or "largest" in side for side in sides):
                    found.add(f"{function.name}: {ast.unparse(node)}")
            if mentions_fp8 and isinstance(node, ast.Call):
                called, text = ast.unparse(node.func).rpartition(".")[2], ast.unparse(node)
                rounds = called in ("floor", "ceil", "round", "trunc", "int")
                if called in ("frexp", "ldexp", "exp2") or (rounds and "log2" in text):
                    found.add(f"{function.name}: {text}")
    return found


def test_labkit_computes_no_codes_and_no_scales():
    found = {}
    for path in sorted((ROOT / "labkit").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if wrong := answers(path.read_text(encoding="utf-8"), ALLOWED.get(name, set())):
            found[name] = wrong
    assert found == {}


@pytest.mark.parametrize("part", PARTS[:3])
def test_the_weeks_own_answers_would_be_noticed(part):
    assert answers((WEEK / part).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "answer",
    [
        "def s(amax, dtype):\n    return torch.finfo(dtype).max / amax",
        "def s(amax):  # float8\n    return 448.0 / amax",
        "def scale_from_amax(amax, fmt):\n    return helper(amax)",
        "def s(amax, dtype):\n    return amax / torch.finfo(dtype).max",
        "def mx(amax):  # the exponent of an MX block, float8\n    return torch.exp2(torch.floor(torch.log2(amax)) - 8)",
        "def mx(amax, float8_dtype):\n    return torch.frexp(amax)[1] - 9",
        "def r(x, float8_dtype):\n    largest = torch.finfo(float8_dtype).max\n    return largest / x.abs().max()",
    ],
)
def test_an_answer_under_another_name_would_be_noticed(answer):
    assert answers(answer)


def test_every_answer_of_the_week_is_a_hole():
    tasks = {blank.task for part in PARTS for blank in blanks((WEEK / part).read_text(encoding="utf-8"), part)}
    assert {"16.1", "16.2", "16.4", "16.5"} <= tasks
    for part in PARTS:
        kept = strip((WEEK / part).read_text(encoding="utf-8"), part)
        assert "NotImplementedError" in kept and "SOLUTION" not in kept


# ---- labkit where the week is absent, or its blanks are open


def python(code: str, *path: Path) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


ABSENT = """
import importlib, importlib.util, pkgutil, sys
sys.modules["week16_fp8"] = None                     # import raises ModuleNotFoundError
import labkit
for module in pkgutil.walk_packages(labkit.__path__, "labkit."):
    if module.name.startswith("labkit.watch.") and importlib.util.find_spec("bokeh") is None:
        continue                                     # `make watch` was not called: the page that draws is not there
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from labkit.compare.preset import load_preset
from labkit.compare.plan import check_arm
from labkit.precision.registry import availability, backends
preset = load_preset("cpu-tiny")
for arm in preset.arms:
    check_arm(preset.config(arm), "cpu", 2)
for name in backends():
    print(name, availability(name, device="cpu"), sep=": ")
"""


@pytest.mark.thorough
def test_without_the_week_all_of_labkit_works_and_its_parts_say_why_not():
    said = dict(line.split(": ", 1) for line in python(ABSENT).splitlines())
    assert said["emulated"] == "there is no week16_fp8.emulated here: arm skipped: run from the course's folder"
    assert said["week16"].startswith("there is no week16_fp8.linear here: arm skipped")
    assert all(said[name] == "available" for name in said if name not in ("te", "week16", "emulated"))


ASKED = """
from labkit.precision.registry import availability
for recipe in ("tensorwise", "block"):
    print(availability("emulated", recipe, "cpu"))
"""
OPEN = "week 16's emulated FP8 is not finished: arm skipped: finish week 16 and run it again"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "open_parts, able",
    [
        *((PARTS, ""), (("casts.py",), ""), (("blockwise.py",), "tensorwise"), (("linear.py",), "block")),
        *((parts, "tensorwise block") for parts in ((), ("formats.py", "scaling.py"))),  # NumPy alone
    ],
)
def test_an_arm_whose_holes_are_open_is_skipped_with_a_sentence(open_parts, able, tmp_path):
    (tmp_path / WEEK.name).mkdir()
    for path in WEEK.glob("*.py"):
        shutil.copy(path, tmp_path / WEEK.name)
    for part in open_parts:
        (tmp_path / WEEK.name / part).write_text(strip((WEEK / part).read_text(encoding="utf-8"), part))
    want = ["available" if recipe in able else OPEN for recipe in ("tensorwise", "block")]
    assert python(ASKED, tmp_path).splitlines() == want

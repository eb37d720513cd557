"""The face of a precision backend stays small, and nobody outside writes into it."""

import ast
from pathlib import Path

import pytest

import labkit
from labkit.precision.base import Backend, State
from labkit.precision.config import PrecisionConfig, PrecisionSpec
from labkit.precision.registry import backends, get_backend, spec_of

FACE = {"convert", "autocast", "checkpoint", "switch", "probe", "evidence", "state", "parameters"}
DATA = {"name", "recipes", "note", "param_dtype", "compiles", "recipe", "modules", "scales"}


def public(backend):
    return {name for name in dir(backend) if not name.startswith("_")}


@pytest.mark.parametrize("name", backends())
def test_eight_things_are_asked_of_a_backend(name):
    backend = get_backend(name)
    assert len(FACE) <= 8 and public(backend) == FACE | DATA
    assert {n for n in DATA if callable(getattr(backend, n))} == set()
    assert public(State(backend)) == {"in_fp8", "flags", "state_dict", "load_state_dict"}


def test_the_spec_comes_from_the_config():
    config = PrecisionConfig(backend="te", skip=["head", "wo"], fused=True, calibrate=2)
    spec = spec_of(config, device="cuda", ranks=4, tokens=128)
    assert spec == PrecisionSpec("current", ("head", "wo"), True, False, 2, "cuda", 4, 128)


def test_no_other_package_writes_into_a_backend_or_asks_for_its_inside():
    hidden = {name for name in vars(Backend) if name.startswith("_") and not name.startswith("__")}
    root, found, seen = Path(labkit.__file__).parent, [], 0
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "backend." in text else ():
            owner = node.value if isinstance(node, ast.Attribute) else None
            if not str(getattr(owner, "id", getattr(owner, "attr", ""))).endswith("backend"):
                continue
            seen += 1
            inside = path.parent.name != "precision" and node.attr in hidden
            if inside or isinstance(node.ctx, ast.Store):
                found.append(f"{path.relative_to(root)}: {ast.unparse(node)}")
    assert found == [] and seen > 20

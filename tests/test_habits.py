"""The linters' settings, the hooks and CONTRIBUTING.md: they say the same, and what they forbid fails."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WEEKS = [path.parent.name for at in ("week*", "capstone") for path in ROOT.glob(f"{at}/__init__.py")]
CODE = ("labkit", "grading", "studies", "tests", *WEEKS)
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = SETTINGS["tool"]["importlinter"]["contracts"]
MAKEFILE = (ROOT / "Makefile").read_text()
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


# ---- make lint, make test, the hooks


def test_before_a_commit_the_same_targets_run():
    hooks = [
        hook
        for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
        for hook in (repo["hooks"] if repo["repo"] == "local" else pytest.fail(f"{repo['repo']} is downloaded"))
    ]
    targets = re.search(r"^lint: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    assert [hook["entry"] for hook in hooks] == [f"make {target}" for target in targets]
    assert all(hook["language"] == "system" and hook["pass_filenames"] is False for hook in hooks)


# ---- imports


def test_every_week_stands_in_the_contracts():
    """Above the weeks that it may import, and known to the others by name only."""
    assert set(WEEKS) | {"labkit", "grading", "studies"} == set(SETTINGS["tool"]["importlinter"]["root_packages"])
    order = next(contract["layers"] for contract in CONTRACTS if "containers" not in contract and "layers" in contract)
    assert order == ["grading", "capstone", *sorted(set(WEEKS) - {"capstone"}, reverse=True), "labkit"]
    refused = [one for one in CONTRACTS if one["type"] == "forbidden"]
    forbidden = {frozenset(one["source_modules"]): set(one["forbidden_modules"]) for one in refused}
    assert forbidden == {
        frozenset({"grading"}): set(WEEKS),
        frozenset({"studies"}): {"grading", *WEEKS},
        frozenset({"labkit", "grading", *WEEKS}): {"studies"},
    }
    for contract in CONTRACTS:
        if contract["type"] == "acyclic_siblings":
            assert set(contract["ancestors"]) == {"labkit", "grading", "studies", *WEEKS}


FORBIDDEN = {  # a module, what it imports, and what the linter says
    "labkit/errors.py": ("labkit.strict", "labkit.errors -> labkit.strict"),
    "labkit/comm/ledger.py": ("labkit.cli", "labkit.comm.ledger -> labkit.cli"),
    "labkit/checks/judge.py": ("labkit.train.loop", "labkit.checks.judge -> labkit.train.loop"),
    "labkit/attic/__init__.py": ("sys", "labkit.attic"),
    "labkit/train/loop.py": ("week13_allreduce.timing", "labkit.train.loop -> week13_allreduce.timing"),
    "labkit/checks/pytest_run.py": ("grading.mark", "labkit.checks.pytest_run -> grading.mark"),
    "week13_allreduce/timing.py": ("grading.mark", "week13_allreduce.timing -> grading.mark"),
    "grading/mark.py": ("week13_allreduce.timing", "grading.mark -> week13_allreduce.timing"),
    "labkit/plan/fit.py": ("studies.guide.survey", "labkit.plan.fit -> studies.guide.survey"),
    "studies/parameters.py": ("grading.mark", "studies.parameters -> grading.mark"),
    "week13_allreduce/given/records.py": ("week13_allreduce.bench", "cycles are allowed in week13_allreduce"),
    "labkit/record/clean.py": ("labkit.record.run", "cycles are allowed in labkit.record"),
}


@pytest.mark.thorough
def test_every_import_that_a_contract_forbids_is_named(tmp_path):
    """All in one copy of the code; each at its module's end, in a function: a lazy import is one too."""
    pytest.importorskip("importlinter", reason="make lint installs it")
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    for path in (path for name in CODE if name != "tests" for path in (ROOT / name).rglob("*.py")):
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, tmp_path / path.relative_to(ROOT))
    for name, (imported, _) in FORBIDDEN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with (tmp_path / name).open("a") as file:
            file.write(f"\n\ndef _lazy():\n    import {imported}\n")
    words = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and [said for _, said in FORBIDDEN.values() if said not in done.stdout] == []


# ---- what is ignored, and why


def test_whoever_ignores_a_finding_names_its_rule_and_a_reason():
    ignored = re.compile(r"# (?:noqa|type: ignore)\b(.*)")
    reasoned = re.compile(r"(?:: [A-Z]+\d+(?:, ?[A-Z]+\d+)*|\[[a-z-]+(?:, ?[a-z-]+)*\])\s+\S.*\w{3}")
    bare = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for name in CODE
        for path in sorted((ROOT / name).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for found in ignored.finditer(line)
        if path != Path(__file__) and not reasoned.match(found[1])
    ]
    assert not bare, "\n".join(bare)


# ---- the page for contributors


def test_the_packages_are_drawn_in_the_order_that_the_linter_holds():
    drawn = re.search(r"## The packages\n\n(.*?)\n\n", PAGE, re.DOTALL)[1]
    lines = [re.findall(r"labkit\.(\w+)", line) for line in drawn.splitlines()]
    layers = next(contract for contract in CONTRACTS if contract.get("containers") == ["labkit"])
    assert layers["exhaustive"] is True
    held = [layer.split(" | ") for layer in layers["layers"] if layer != "__main__"]
    assert [name for line in lines for name in line] == [name for layer in held for name in layer]


def test_paths_and_modules_on_the_page_exist():
    paths = {
        word.rstrip("/") for word in re.findall(r"`([\w.*-]+(?:/[\w.*-]*)+|[\w-]+\.(?:md|toml|lock|txt|py))`", PAGE)
    }
    assert {"tests/mutants13.py", "requirements-lint.lock", "labkit/compare/presets"} <= paths
    of_a_week = {"tasks.toml", "test_*.py", "test_stretch.py", "scenarios.py", "stretch", "given", "results"}
    for path in paths:
        places = [ROOT, ROOT / "week13_allreduce"] if path in of_a_week else [ROOT]
        assert any(list(place.glob(path)) for place in places), path
    modules = set(re.findall(r"\blabkit(?:\.\w+)+", PAGE))
    assert "labkit.compare.figures" in modules
    for module in modules:
        assert find_spec(module), module

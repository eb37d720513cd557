"""The linters' settings, the hooks and CONTRIBUTING.md: they say the same, and what they forbid fails."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
import yaml

ROOT = Path(__file__).parents[1]
CODE = (
    "labkit",
    "grading",
    "studies",
    "tests",
    *(p.parent.name for at in ("week*", "capstone") for p in ROOT.glob(f"{at}/__init__.py")),
)
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = SETTINGS["tool"]["importlinter"]["contracts"]
MAKEFILE = (ROOT / "Makefile").read_text()
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


# ---- make lint, make test, the hooks


def make(*words: str) -> tuple[int, str]:
    """(exit status, output) of make with these words."""
    if shutil.which("make") is None:
        pytest.skip("make is not here")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


@pytest.fixture
def venv(tmp_path):
    """A folder for VENV= that make believes installed; its tools find nothing."""
    (tmp_path / "bin").mkdir()
    for stamp in (".installed", ".lint"):
        (tmp_path / stamp).touch()
    for tool in ("ruff", "lint-imports", "mypy", "python"):
        (tmp_path / "bin" / tool).symlink_to("/bin/true")
    return tmp_path


def test_make_test_begins_with_the_linters(venv):
    """As make would run them."""
    _, planned = make("--dry-run", "test", f"VENV={venv}")
    ran = re.findall(r"/bin/(ruff check|ruff format|lint-imports|mypy|python -m pytest)", planned)
    assert ran == ["ruff check", "ruff format", "lint-imports", "mypy", "python -m pytest"]


@pytest.mark.parametrize("failing", ["ruff", "lint-imports", "mypy"])
def test_a_finding_of_a_linter_fails_make_lint(venv, failing):
    assert make("lint", f"VENV={venv}")[0] == 0
    (venv / "bin" / failing).unlink()
    (venv / "bin" / failing).symlink_to("/bin/false")
    assert make("lint", f"VENV={venv}")[0] != 0


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
    weeks = [name for name in CODE if name.startswith(("week", "capstone"))]
    assert set(weeks) | {"labkit", "grading", "studies"} == set(SETTINGS["tool"]["importlinter"]["root_packages"])
    order = next(contract["layers"] for contract in CONTRACTS if "containers" not in contract and "layers" in contract)
    assert order == ["grading", "capstone", *sorted(set(weeks) - {"capstone"}, reverse=True), "labkit"]
    forbidden = {
        frozenset(contract["source_modules"]): set(contract["forbidden_modules"])
        for contract in CONTRACTS
        if contract["type"] == "forbidden"
    }
    assert forbidden == {
        frozenset({"grading"}): set(weeks),
        frozenset({"studies"}): {"grading", *weeks},
        frozenset({"labkit", "grading", *weeks}): {"studies"},
    }
    for contract in CONTRACTS:
        if contract["type"] == "acyclic_siblings":
            assert set(contract["ancestors"]) == {"labkit", "grading", "studies", *weeks}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The code alone, to be spoilt."""
    pytest.importorskip("importlinter", reason="make lint installs it")
    root = tmp_path_factory.mktemp("code")
    shutil.copyfile(ROOT / "pyproject.toml", root / "pyproject.toml")
    for name in CODE:
        if name != "tests":
            for path in (ROOT / name).rglob("*.py"):
                (root / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, root / path.relative_to(ROOT))
    return root


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path, line, finding",
    [
        ("labkit/errors.py", "import labkit.strict", "labkit.errors -> labkit.strict"),
        ("labkit/comm/ledger.py", "from labkit import cli", "labkit.comm.ledger -> labkit.cli"),
        ("labkit/checks/judge.py", "import labkit.train.loop", "labkit.checks.judge -> labkit.train.loop"),
        ("labkit/attic/__init__.py", "", "labkit.attic"),
        ("labkit/train/loop.py", "import week13_allreduce.timing", "labkit.train.loop -> week13_allreduce.timing"),
        ("labkit/checks/pytest_run.py", "import grading.mark", "labkit.checks.pytest_run -> grading.mark"),
        ("week13_allreduce/timing.py", "import grading.mark", "week13_allreduce.timing -> grading.mark"),
        ("grading/mark.py", "import week13_allreduce.timing", "grading.mark -> week13_allreduce.timing"),
        ("labkit/plan/fit.py", "import studies.guide.survey", "labkit.plan.fit -> studies.guide.survey"),
        ("studies/parameters.py", "import grading.mark", "studies.parameters -> grading.mark"),
        (
            "week13_allreduce/given/records.py",
            "import week13_allreduce.bench",
            "cycles are allowed in week13_allreduce",
        ),
        ("labkit/record/clean.py", "import labkit.record.run", "cycles are allowed in labkit.record"),
    ],
)
def test_an_import_that_a_contract_forbids_is_named(path, line, finding, copy):
    file = copy / path
    before = file.read_text() if file.exists() else None
    file.parent.mkdir(exist_ok=True)
    # At the end, in a function: a lazy import is one too.
    file.write_text((before or "") + f"\n\ndef _lazy():\n    {line or 'pass'}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if before is None:
        shutil.rmtree(file.parent)
    else:
        file.write_text(before)
    assert done.returncode == 1 and finding in done.stdout, done.stdout + done.stderr


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


def test_types_are_found_alike_where_only_a_laptops_packages_are():
    """`make test` installs requirements.lock and the linters. What else is imported is Any everywhere, or mypy ends in
    an error where it is not there: SQLAlchemy, which nbgrader brings, did so in an environment without it."""
    skipped = {name.partition(".")[0] for table in SETTINGS["tool"]["mypy"]["overrides"] for name in table["module"]}
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    locked, brings = {_plain(line.partition("==")[0]) for line in lock}, packages_distributions()
    strange = set()
    for file in (file for name in CODE if name != "tests" for file in (ROOT / name).rglob("*.py")):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            roots = {name.partition(".")[0] for name in named} - skipped - sys.stdlib_module_names - set(CODE)
            if roots and "# type: ignore[import" not in text.splitlines()[node.lineno - 1]:
                known = {root for root in roots if {_plain(one) for one in brings.get(root, ())} & locked}
                strange |= {f"{root} in {file.relative_to(ROOT)}" for root in roots - known}
    assert not strange


def _plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_every_rule_that_is_off_has_its_reason_beside_it():
    text = (ROOT / "pyproject.toml").read_text()
    off = SETTINGS["tool"]["ruff"]["lint"]
    for rule in [*off["ignore"], *(rule for rules in off["per-file-ignores"].values() for rule in rules)]:
        assert re.search(rf'^ +"{rule}",\s+# \w.*$', text, re.MULTILINE), rule


def test_text_files_end_their_lines_in_one_way():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    listed = subprocess.run(["git", "ls-files", "--eol"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert listed.count("\n") > 100
    wrong = [
        line for line in listed.splitlines() if re.match(r"i/(crlf|mixed)", line) or "attr/text=auto eol=lf" not in line
    ]
    assert all(line.startswith("i/-text") for line in wrong), wrong


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
    of_a_week = {"tasks.toml", "test_*.py", "given", "results"}
    for path in paths:
        places = [ROOT, ROOT / "week13_allreduce"] if path in of_a_week else [ROOT]
        assert any(list(place.glob(path)) for place in places), path
    modules = set(re.findall(r"\blabkit(?:\.\w+)+", PAGE))
    assert "labkit.compare.figures" in modules
    for module in modules:
        assert find_spec(module), module
    assert re.search(r"^class Backend\b", (ROOT / "labkit/precision/base.py").read_text(), re.MULTILINE)
    assert hasattr(__import__("labkit.compare.figures", fromlist=["draw_all"]), "draw_all")


def test_commands_on_the_page_exist():
    from grading.cli import app as grade
    from labkit.cli import app as lab

    for target in set(re.findall(r"\bmake (\w+)", PAGE)):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"make {target}"
    typed = re.findall(r"`(lab|grade) (\w+)([^`]*)`", PAGE)
    assert {name for name, *_ in typed} == {"lab", "grade"}
    for name, command, rest in typed:
        known = typer.main.get_command({"lab": lab, "grade": grade}[name]).commands
        options = {opt for parameter in known[command].params for opt in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options, f"{name} {command} {rest}"
        for preset in re.findall(r"--preset (\S+)", rest):
            assert (ROOT / "labkit" / "compare" / "presets" / f"{preset}.toml").exists(), preset

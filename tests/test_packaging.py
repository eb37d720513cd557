"""The ways to install give one set: pyproject.toml (ranges), requirements.lock (pins), environment.yml (conda), and the
container's list."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import labkit

ROOT = Path(__file__).parents[1]


def lock(*extras: str) -> dict[str, Version]:
    """The pins of requirements.lock, and of requirements-EXTRA.lock for each extra. None stands in two of them."""
    pins: dict[str, Version] = {}
    for name in ("requirements.lock", *(f"requirements-{extra}.lock" for extra in extras)):
        for line in (ROOT / name).read_text().splitlines():
            if line and not line.startswith("#"):
                package, _, version = line.partition("==")
                package = package.lower().replace("_", "-")
                assert package not in pins, f"{name}: {package} is pinned in another lock"
                pins[package] = Version(version)
    return pins


def test_lock_pins_torch_exactly():
    assert str(lock()["torch"]) == "2.13.0", "a local build tag such as +cpu would refuse everybody else's torch"


@pytest.mark.parametrize(
    "extra, locks",
    [(None, []), ("student", []), ("dev", []), *((extra, [extra]) for extra in ("grading", "lint", "site", "watch"))],
)
def test_lock_satisfies_every_range_in_pyproject(extra, locks):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    pins = lock(*locks)
    for requirement in map(Requirement, wanted):
        pin = pins.get(requirement.name.lower().replace("_", "-"))
        assert pin is not None, f"{requirement.name} is in pyproject.toml and in no lock"
        assert pin in requirement.specifier, f"{requirement.name} is pinned to {pin}, not {requirement.specifier}"


def test_a_laptop_installs_no_linter_no_gradebook_and_no_dashboard():
    everything = lock("grading", "lint", "site", "watch")
    for name in ("ruff", "mypy", "import-linter", "pre-commit", "nbgrader", "dask", "panel", "bokeh", "sphinx"):
        assert name in everything and name not in lock(), name
    assert not {"ruff", "mypy", "nbgrader"} & {
        Requirement(line).name
        for extra in ("student", "dev")
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    }


def test_the_containers_list_is_pyprojects_without_what_the_container_brings():
    """NVIDIA's container brings torch and Transformer Engine; whatever is added here must not pull another torch."""
    lines = (ROOT / "requirements-container.txt").read_text().splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["te"]]
    brought = {line for line in wanted if Requirement(line).name in ("torch", "transformer-engine")}
    assert listed == set(wanted) - brought and len(brought) == 2 and len(listed) == len(wanted) - 2
    install = "PIP_CONSTRAINT= pip install -r requirements-container.txt && pip install --no-deps -e ."
    for path in ("docs/renters.md", "requirements-container.txt"):
        assert install in (ROOT / path).read_text()


def test_environment_yml_installs_the_lock_and_nothing_else():
    lines = [
        line.strip(" -")
        for line in (ROOT / "environment.yml").read_text().splitlines()
        if line.startswith(("  -", "      -"))
    ]
    assert lines[-3:] == ["pip:", "r requirements.lock", "e ."]
    conda = dict(line.partition("=")[::2] for line in lines[:-3])
    assert set(conda) == {"python", "make", "pip"}, "a package named here would escape requirements.lock"
    minimum = Requirement("python" + tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    assert Version(conda["python"]) in minimum.specifier


def test_a_students_container_installs_the_lock_by_setup_and_nothing_else():
    docker = (ROOT / "Dockerfile").read_text()
    assert "make setup" in docker and "pip" not in docker, "a package named here would escape requirements.lock"
    version = re.search(r"^FROM python:([\d.]+)-slim$", docker, re.MULTILINE)[1]
    minimum = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert Version(version) in Requirement(f"python{minimum}").specifier
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    venv = re.search(r"^ENV VENV=(\S+)", docker, re.MULTILINE)[1]
    command = container["postCreateCommand"]
    assert command.startswith(f"{venv}/bin/pip ") and "--no-deps" in command


def test_the_citation_names_this_version():
    citation = dict(line.split(": ", 1) for line in (ROOT / "CITATION.cff").read_text().splitlines() if ": " in line)
    assert (citation["version"], citation["license"]) == (labkit.__version__, "Apache-2.0")


LIGHT = {  # what a program does first, and what it must not pay for
    "import labkit, labkit.cli": ("torch", "matplotlib", "numpy", "labkit.crossover"),  # students call `lab` all day
    "import labkit.checks, labkit.checks.commands, labkit.checks.plugin": ("torch",),
    "import labkit.checks.results, labkit.comm.helper": ("torch",),  # or the helper and `lab check` import it in turn
    "import labkit.doctor.findings, labkit.doctor.system, labkit.doctor.frameworks, labkit.doctor.grading": (
        *("torch", "numpy", "rich", "matplotlib", "torchao"),
    ),
    "import labkit.model.decoder": ("torch._dynamo",),  # a second of each rank, and a check's call has five
    "import labkit.record.run, labkit.compare.report": ("torch", "matplotlib", "jinja2"),
    "from labkit.plan.planner import Request, plan; plan(Request(gpus=8))": ("torch",),
    "from labkit.record import hardware; hardware.describe()": ("torch", "numpy", "matplotlib"),
}


@pytest.mark.parametrize("first", LIGHT)
def test_what_comes_first_stays_light(first):
    code = f"import sys; {first}; sys.exit(any(name in sys.modules for name in {LIGHT[first]}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


def test_every_module_names_its_purpose():
    """A file is one idea, and says which in its docstring."""
    for path in sorted((ROOT / "labkit").rglob("*.py")):
        found = re.match(r"\s*(#.*\n)*\s*r?(\"{3}|'{3})\S", path.read_text())
        assert found, f"{path.relative_to(ROOT)} has no docstring"

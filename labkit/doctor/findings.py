"""What can this machine run? Each finding with its reason and, where something is missing, the fix in one line.

The doctor must answer where nothing else works: every probe is a process with a time limit, and one that raises,
crashes or hangs becomes a failed check, so a probe need not catch what it tries. Imports the standard library alone.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.errors import in_words

# What is required, as in pyproject.toml (a test holds them together).
PYTHON = (3, 11)
TORCH = ((2, 11), (2, 15))  # at least, less than
PACKAGES = (
    *("numpy", "matplotlib", "pydantic", "typer", "rich", "tokenizers", "jinja2", "scipy", "psutil"),
    *("nvidia-ml-py", "cloudpickle"),
)
NOTEBOOK = ("jupyterlab", "pytest")  # what students need beside them: `lab open`, `lab check`


@dataclass(frozen=True)
class Check:
    """One finding. `ok`: True, False, or None (not here, and only some purposes need it). `fix`: unless ok is True."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Probe:
    """`target`: "module:function", a generator of Checks with these `names`; `fix`: for when it does not answer."""

    target: str
    names: tuple[str, ...]
    fix: str
    seconds: float = 30.0


@dataclass(frozen=True)
class Group:
    """A purpose: all checks in `needs` must be True, and one of `one_of`; without `wants` it works, less well."""

    name: str
    needs: tuple[str, ...]
    start: str
    one_of: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Whether a purpose can be served, and why not: the names of the `missing` checks."""

    ok: bool
    sentence: str
    missing: tuple[str, ...]


# NVIDIA's PyTorch container names itself in this variable; `make setup` would fetch another torch there.
SETUP = (
    "run `PIP_CONSTRAINT= pip install -r requirements-container.txt`"
    if os.environ.get("NVIDIA_PYTORCH_VERSION")
    else "run `make setup`"
)
_TORCH = "see whether `python -c 'import torch'` and `nvidia-smi` answer; repair torch (`make setup`) or the driver"
_GLOO = "let the firewall pass 127.0.0.1, and see whether `python -c 'import torch.distributed'` answers"
_BF16 = f"take a torch from 2.11 on ({SETUP}); to choose the path, unset or set LABKIT_BF16_PRODUCTS"
_AO = f"install the pinned torch and torchao together: {SETUP}"
_TE = "see what `python -c 'import transformer_engine.pytorch'` says"
_ROOM, _GPU = ("memory", "disk", "temporary files", "/dev/shm"), ("torch", "GPU", "FP8 hardware", "NCCL")
PROBES = (
    Probe("labkit.doctor.system:basics", ("Python", "operating system", "packages", "notebook"), SETUP),
    Probe("labkit.doctor.system:room", _ROOM, "see `df -h` and `free -h`"),
    Probe("labkit.doctor.frameworks:torch_and_gpu", _GPU, _TORCH, 120.0),
    Probe("labkit.doctor.frameworks:gloo", ("gloo",), _GLOO, 120.0),
    Probe("labkit.doctor.frameworks:bf16_products", ("BF16 products",), _BF16, 120.0),
    Probe("labkit.doctor.frameworks:torchao", ("torchao",), _AO, 120.0),
    Probe("labkit.doctor.frameworks:transformer_engine", ("Transformer Engine",), _TE, 180.0),
)
_BASE = ("Python", "operating system", "packages", "torch")
_PLACE = ("disk", "temporary files")
GROUPS = (
    # Students first: most of them need nothing below this line. For grading there is `grade doctor`.
    Group("weeks 13 to 16", (*_BASE, "notebook", "gloo", "memory", *_PLACE), "`lab open week13`"),
    Group("the CPU demo", (*_BASE, "gloo", "torchao", "memory", *_PLACE), "`make demo`", wants=("BF16 products",)),
    Group(
        "the FP8 comparison on a GPU",
        (*_BASE, "GPU", "FP8 hardware", "NCCL", *_PLACE),
        "`lab compare --list` names the presets",
        one_of=("Transformer Engine", "torchao"),
        wants=("Transformer Engine", "torchao", "/dev/shm"),
    ),
)


def run_doctor(probes: Sequence[Probe] = PROBES) -> list[Check]:
    """Run all probes at once, and return one Check for each of their names, in order, whatever a probe does."""
    begin, running = time.monotonic(), []
    try:
        for probe in probes:
            running.append((probe, _start(probe)))
        return [check for probe, process in running for check in _answers(probe, process, begin)]
    finally:  # Ctrl-C: leave no probe behind
        for _, process in running:
            _kill(process)


def verdicts(checks: Iterable[Check]) -> list[Verdict]:
    """One for each of GROUPS. The sentences name checks; what was found out about them stands in the table."""
    well = {check.name for check in checks if check.ok is True}
    found = []
    for group in GROUPS:
        missing = [name for name in group.needs if name not in well]
        if group.one_of and well.isdisjoint(group.one_of):
            missing += group.one_of
        lacking = ", ".join(name for name in group.wants if name not in well)
        sentence = f"yes ({group.start}), but without {lacking}" if lacking else f"yes: {group.start}"
        if missing:
            sentence = f"NO, because of {', '.join(missing)}"
        found.append(Verdict(not missing, sentence, tuple(missing)))
    return found


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def exit_code(checks: Iterable[Check]) -> int:
    """0 if the CPU demo can run, else 1."""
    return 0 if dict(zip((group.name for group in GROUPS), verdicts(checks)))["the CPU demo"].ok else 1


def render(checks: Sequence[Check], console: Any = None) -> None:
    """Print the findings as a table, by purpose, with each purpose's verdict: ok, NO, or - for "not here"."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    words = {True: ("ok", "green"), False: ("NO", "bold red"), None: ("-", "dim")}
    left = {check.name: check for check in checks}
    shown = list(zip(GROUPS, verdicts(checks)))
    good, bad = (", ".join(g.name for g, v in shown if v.ok is ok) or "nothing here" for ok in (True, False))
    console.print(Text(f"This machine is good for: {good}. Not for: {bad}."), end="\n\n")
    for group, verdict in shown:
        table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
        table.add_column(width=2)
        table.add_column(width=18)
        table.add_column()
        for name in dict.fromkeys((*group.needs, *group.one_of, *group.wants)):
            check = left.pop(name, None)  # each check stands once, where it is needed first
            if check is not None:
                # Text, not markup: "[pytorch]" in a pip command is no style
                text = Text(check.detail)
                if check.fix:
                    text.append(f"\n-> {check.fix}", style="cyan")
                word, style = words[check.ok]
                table.add_row(Text(word, style=style), Text(check.name), text)
        title = Text(f"{group.name[0].upper()}{group.name[1:]}: ", style="bold")
        console.print(title.append(verdict.sentence, style="green" if verdict.ok else "red"))
        console.print(table)
        console.print()


# ---- running a probe in a process of its own


def _start(probe: Probe) -> subprocess.Popen:
    # Appended, not inserted: an installed labkit must not put all of site-packages before the standard library.
    path = f"import sys; sys.path.append({str(Path(__file__).resolve().parents[2])!r})"
    code = f"{path}; from labkit.doctor.findings import _answer; _answer({probe.target!r})"
    # A file called torch.py in the working directory must not be taken for torch; one thread a probe is plenty.
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=none, stdout=pipe, stderr=none, env=environment, start_new_session=True)


def _answers(probe: Probe, process: subprocess.Popen, begin: float) -> list[Check]:
    """The probe's Checks; what it does not deliver becomes a failed Check with the reason."""
    found, reason = {}, "it did not answer"
    try:
        out, _ = process.communicate(timeout=max(0.0, begin + probe.seconds - time.monotonic()))
        if process.returncode > 0:
            reason = f"the probe ended with status {process.returncode}"
        elif process.returncode:
            reason = f"the probe was ended by {signal.Signals(-process.returncode).name}"
    except subprocess.TimeoutExpired:
        reason = f"no answer in {probe.seconds:g} s"
        _kill(process)
        try:
            out, _ = process.communicate(timeout=5)
        except subprocess.TimeoutExpired as error:  # stuck in the kernel: give it up, keep what it said
            out = error.stdout or b""
    for line in out.splitlines():
        with suppress(ValueError):  # a line that its end cut short
            row = json.loads(line)
            if "error" in row:
                reason = row["error"]
            else:
                found[row["name"]] = Check(**{**row, "fix": "" if row["ok"] is True else row["fix"]})
    failed = f"could not be found out: {reason}"
    return [found.get(name) or Check(name, False, failed, probe.fix) for name in probe.names]


def _kill(process: subprocess.Popen) -> None:
    """End the process, if it still runs, and what it started: it leads a process group of its own."""
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _answer(target: str) -> None:
    """In the probe's process: one JSON line on stdout for each Check; whatever else is printed goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        module, _, function = target.partition(":")
        for check in getattr(importlib.import_module(module), function)():
            print(json.dumps(asdict(check)), file=out, flush=True)
    except BaseException as error:  # also SystemExit: nothing a library does may end the doctor
        print(json.dumps({"error": in_words(error)}), file=out, flush=True)
    os._exit(0)  # libraries may hang in their clean-up; the answer is out

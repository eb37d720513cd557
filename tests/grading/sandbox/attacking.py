"""What the attack tests stand on: a small week whose modules are attacks, and sandboxes with single defences switched
off.

The attacks are students' code: plain functions in `attacks/`, copied into a package. Each says what it got. A sandbox
costs over a second, so attacks that leave it whole share one; `Field` keeps one for every set of the sandbox's own
defences that is off. Those of the grader's side, and its deadlines, are no matter of the sandbox.
"""

import os
import shutil
from pathlib import Path

import pytest

from grading.sandbox import watch
from grading.sandbox.box import Box, Limits
from grading.sandbox.runner import SandboxRunner
from labkit.checks.runner import Job, Reply

ROOT = Path(__file__).resolve().parents[3]
ATTACKS = Path(__file__).parent / "attacks"
PACKAGE = "week91_mini"
DEADLINE = 20.0  # seconds: generous, the machine may be busy. Attacks that hang use a shorter one
GRADERS = frozenset(
    {"deadline", "excuse", "output", "watch", "text", "judging", "broker", "waits"}
)  # defences outside of the sandbox


class Field:
    """Asks attacks. `folder` holds the package; what a test writes there is seen by the next call."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._runners, self._boxes = folder, {}, {}
        shutil.copytree(ATTACKS, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        readable(folder)

    def runner(self, off=(), **options) -> SandboxRunner:
        """A runner with these defences off. Options make it one of its own, for `ask(runner=...)`."""
        key = (frozenset(off), tuple(sorted(options.items())))
        if key not in self._runners:
            options = {"deadline": DEADLINE, "budget": 1000.0, **options}
            self._runners[key] = Runner(self, off=frozenset(off), **options)
        return self._runners[key]

    def lent(self, off: frozenset[str], limits: Limits) -> Box:
        """The sandbox for these defences off and these limits, started; a new one if it is no longer as it was."""
        key = (off - GRADERS, limits)
        if key not in self._boxes or not self._boxes[key].idle:
            if key in self._boxes:
                self._boxes[key].close()
            self._boxes[key] = Box(self.folder, limits, key[0])
            self._boxes[key].start()
        return Seen(self._boxes[key], off)

    def ask(self, name: str, ranks: int = 1, off=(), runner: SandboxRunner | None = None, **kwargs) -> Reply:
        """Run an attack "module.function(group, **kwargs)" on `ranks` ranks."""
        job = Job(self.folder, PACKAGE, name, ((),) * ranks, kwargs, True)
        return (runner or self.runner(off)).run(job)

    def got(self, name: str, ranks: int = 1, off=(), **kwargs):
        """What rank 0 brought back. The call itself must have ended well."""
        reply = self.ask(name, ranks, off, **kwargs)
        assert reply.verdict == "passed", reply.text
        return reply.values[0]

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()
        for box in self._boxes.values():
            box.close()


class Seen:
    """A sandbox as a grader sees it who has these defences off."""

    def __init__(self, box: Box, off: frozenset[str]) -> None:
        self._seen, self.off = box, off

    def __getattr__(self, name: str):
        return getattr(self._seen, name)


class Runner(SandboxRunner):
    """Has its sandbox lent by the field, for as long as that lives."""

    def __init__(self, field: Field, **options) -> None:
        super().__init__(field.folder, **options)
        self._field = field

    def run(self, job: Job) -> Reply:
        if self._box is None or not self._box.alive:
            self._lent = self._field.lent(self.off, self.limits)
        return super().run(job)


def readable(folder: Path) -> Path:
    """For whoever runs in a sandbox: pytest's folders are their owner's alone; as root, the sandbox is another."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for parent in folder.parents:
        if os.geteuid() == 0 and os.stat(parent).st_uid == 0:
            parent.chmod(os.stat(parent).st_mode | 0o011)
    return folder


def processes(runner: SandboxRunner) -> list[int]:
    """What is alive in its sandbox besides bubblewrap's two processes and the zygote."""
    box = runner._box
    return [pid for pid in watch.tree(box.pid)[2:] if pid != box.zygote]


def needs(condition: bool, why: str) -> None:
    """Skip where the machine has no such thing to attack: then nothing is proved, and nothing is there to defend."""
    if not condition:
        pytest.skip(why)

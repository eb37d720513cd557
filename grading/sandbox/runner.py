"""The Runner behind `call` in grading: a week's test file runs here, in the judge, and the student's functions in a
sandbox.

A submission has its seconds, and no more of the machine. Its calls count by the clock. The tests' own work on what came
back counts too (`judging`), by the processor: a test that walks a long answer is slow because of the answer, and the
same test took the reference's in no time, which is in the budget ten times over.
"""

import ast
import importlib.util
import marshal
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from grading.sandbox import watch
from grading.sandbox.box import Box, BoxFailed, Limits
from grading.sandbox.call import Call, End
from grading.sandbox.command import REFERENCE, SUBMISSION, references, scratch
from grading.sandbox.frames import clean
from grading.sandbox.site import BoxedSite
from labkit.checks import values
from labkit.checks.markers import strip
from labkit.checks.outside import composed
from labkit.checks.runner import Case, Job, Reply, describe, failed_reply, not_attempted, read_answers
from labkit.checks.tasks import Week
from labkit.checks.verdict import CRASHED, FAULT, HUNG, NOT_ATTEMPTED, PASSED, CheckFailed

DEADLINE = 6.0  # seconds for a call (at home it is 5), or five times what the reference took, whatever is more
TIMES = 5.0
PATIENCE = 1  # calls of one task that may run into the full deadline
SHORT = 1.0  # seconds for that task's later calls (or five times the reference)
HOPE = 4  # calls of one task that may hang before any of them has ended; then HOPELESS is enough for those after them
HOPELESS = 0.5  # seconds (or five times the reference): what works does so in a tenth of that
BUDGET = 180.0  # seconds for a submission, or ten times what the reference took in all
RESTARTS = 10  # sandboxes that one function may destroy: each costs a new import of torch
MAX_TEXT = 8000  # characters that a verdict tells
LIMITS = Limits()
THEIRS = "the course's own "  # in front of a file's name, where the student has one of this name as well
MAX_COMPILED = 200  # files that are compiled before they are imported


@cache
def parts_of(week: Week) -> dict[tuple[str, ...], dict[str, str]]:
    """What the tasks of a week stand on: {functions: {path: source}}. A source holds the solutions of exactly the tasks
    stood on, and blanks for all others: what is sent in for a task must not hold that task's own solution."""
    parts: dict[tuple[str, ...], dict[str, str]] = {}
    for task in week.tasks:
        below = [week.task(id) for id in task.stands_on]
        functions = tuple(name for other in below for name in other.functions)
        if functions:
            modules = {module for other in below for module in other.modules}
            parts[functions] = _sources(week, modules, task.stands_on)
    return parts


def theirs(text: str) -> str:
    """The text with the course's files named as such; a path of the student's own that merely holds such a place, as
    /home/me/course/, stays as it is."""
    for place in references():
        text = re.sub(rf"(?<![\w/.~-]){re.escape(place)}", THEIRS, text)
    return text


def _sources(week: Week, modules: set[str], keep: tuple[str, ...]) -> dict[str, str]:
    """These modules, `__init__` files, and what they import from the week's package."""
    found: dict[str, str] = {}
    todo = {"__init__", *modules}
    while todo:
        module = todo.pop()
        path = Path(*module.split("."))
        file = next((f for f in (path.with_suffix(".py"), path / "__init__.py") if (week.folder / f).is_file()), None)
        name = f"{week.package}/{file}"
        if file is None or name in found or week.folder / file in week.tests:
            continue
        found[name] = strip((week.folder / file).read_text(encoding="utf-8"), name, keep)
        package = module.split(".")[:-1] if file.name != "__init__.py" else module.split(".")
        todo.update(".".join((*package[:depth], "__init__")) for depth in range(1, len(package) + 1))
        for node in ast.walk(ast.parse(found[name])):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith(week.package)):
                base = package[: len(package) - node.level + 1] if node.level else []
                inner = (node.module or "").removeprefix(week.package).strip(".")
                base = [*base, *inner.split(".")] if inner else base
                todo.update({".".join(base), *(".".join((*base, alias.name)) for alias in node.names)} - {""})
    return found


@cache
def compiled(path: str, text: str) -> torch.Tensor:
    """A source as the bytes of its .pyc, uint8: a rank that parsed it would spend more on that than on its call."""
    code = compile(text, f"{scratch()}/{REFERENCE}/{path}", "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)  # 1: of no source file
    return torch.frombuffer(bytearray(head + marshal.dumps(code)), dtype=torch.uint8)


class SandboxRunner:
    """Runs jobs of one submission, whose package lies in `folder`. Use it in a `with`, or `close()` it.

    parts       the reference's sources, {path: text}, by what a job stands on (its `stands_on`): see `parts_of`
    reference   seconds that the reference needed, by function; {} while the reference itself is being timed
    box         a sandbox to use that has started on this folder: it is left alive if it is still as it was
    precompile  compile the package first, once; writes __pycache__ folders into `folder`
    """

    def __init__(
        self,
        folder: Path,
        *,
        parts: Mapping[tuple[str, ...], dict[str, str]] = {},
        reference: Mapping[str, float] = {},
        limits: Limits = LIMITS,
        budget: float = BUDGET,
        deadline: float = DEADLINE,
        off: frozenset[str] = frozenset(),
        box: Box | None = None,
        precompile: bool = False,
    ) -> None:
        self.folder, self.parts, self.reference = folder, parts, reference
        self.limits, self.off, self.budget, self.deadline = limits, off, budget, deadline
        self.seconds: dict[str, float] = {}  # the longest call of each function
        self.used = 0.0
        self.hangs: Counter[str] = Counter()
        self.ended: set[str] = set()  # tasks of which a call has ended, however
        self.fatal: Counter[str] = Counter()
        self.processor = 0.0  # seconds of processor of all its sandboxes so far
        self._box: Box | None = None
        self._lent, self.precompile = box, precompile
        self._baseline, self._before = 0, 0.0  # what it held and had used when this submission's turn began
        self._since: float | None = None  # processor seconds of this process when a test began to work; None: none does

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Around one case. Whatever its test computes counts as the submission's time; when that is used up,
        CheckFailed is raised in the midst of it."""
        if "judging" in self.off:
            yield
            return
        before = signal.signal(signal.SIGPROF, self._over)
        self._work(True)
        try:
            yield
        finally:
            self._work(False)
            signal.signal(signal.SIGPROF, before)

    def _work(self, begins: bool) -> None:
        """The test begins to compute, or leaves it to a call: count what it has used, and set or stop the timer."""
        now = time.process_time()
        if self._since is not None:
            self.used += now - self._since
        self._since = now if begins else None
        # Again each second: a test may catch the first one, or be where an exception has no effect.
        signal.setitimer(signal.ITIMER_PROF, max(0.01, self.budget - self.used) if begins else 0.0, 1.0)

    def _over(self, *_: object) -> None:
        if self._since is not None:
            self.used = max(self.used, self.budget)  # the timer counts in ticks: it may be early
            raise CheckFailed(
                HUNG,
                f"not judged any further: to judge what came back takes so long that this submission has used up its "
                f"{self.budget:.0f} s",
            )

    def run(self, job: Job) -> Reply:
        if self._since is None:
            return self._ran(job)
        self._work(False)  # a call counts by the clock, but for what others took
        try:
            return self._ran(job)
        finally:
            self._work(True)

    def _ran(self, job: Job) -> Reply:
        if self.used >= self.budget:
            return Reply(HUNG, text=f"not run any more: this submission has used up its {self.budget:.0f} s")
        if self.fatal[job.function] >= RESTARTS:
            return Reply(CRASHED, text=f"not run any more: {job.function} has destroyed {RESTARTS} sandboxes")
        arrived = begin = time.monotonic()
        try:
            box = self._started()
            begin = time.monotonic()  # importing torch again is not the function's time
            end = self._run(job, box)
        except BoxFailed as error:
            end = End(FAULT, f"the sandbox failed: {error}", fatal=True)
        ended = time.monotonic()
        self.seconds[job.function] = max(ended - begin, self.seconds.get(job.function, 0.0))
        if end.verdict == HUNG:
            self.hangs[job.task] += ended - begin >= self._deadline(job)
        else:
            self.ended.add(job.task)
        if end.fatal:
            self._drop()
            self.fatal[job.function] += end.verdict != FAULT
        reply = self._reply(end, job)
        reply.printed = end.printed
        if "text" not in self.off:  # an exception's words, say: the student's
            reply.text, reply.cause = clean(reply.text, MAX_TEXT), tuple(clean(c, MAX_TEXT) for c in reply.cause)
        # Ending it and reading what came back are its own time as well; what others took of the machine is not.
        self.used += time.monotonic() - arrived - end.lost
        return reply

    def _run(self, job: Job, box: Box) -> End:
        sources = self.parts.get(tuple(job.stands_on), {}) if job.stands_on else {}
        modules = {path + "c": compiled(path, text) for path, text in sources.items()}
        header = {**describe(job, SUBMISSION), "size": len(job.inputs)}
        if not sources:
            header["stands_on"] = []
        jobs = [  # each rank is sent its own arguments and nothing of another's
            ({**header, "rank": rank}, values.pack((args, dict(job.kwargs), modules)))
            for rank, args in enumerate(job.inputs)
        ]
        return Call(box, jobs, self._deadline(job), self._baseline, self.budget - self.used).run()

    def _deadline(self, job: Job) -> float:
        times = TIMES * self.reference.get(job.function, 0.0)
        later = HOPELESS if self.hangs[job.task] >= HOPE and job.task not in self.ended else SHORT
        limit = max(self.deadline if self.hangs[job.task] < PATIENCE else later, times)
        return min(limit, max(SHORT, self.budget - self.used))

    def _reply(self, end: End, job: Job) -> Reply:
        if end.verdict == PASSED:
            return read_answers(end.answers, end.ledgers, job.with_group)
        if end.autopsy is not None:
            reply = failed_reply(end.autopsy, SUBMISSION, end.ledgers, job.function if job.without else "")
            reply.verdict = end.verdict
            reply.text, reply.cause = theirs(reply.text), tuple(map(theirs, reply.cause))
            return reply
        if end.verdict == NOT_ATTEMPTED:
            return Reply(NOT_ATTEMPTED, text=not_attempted(end.text))
        return Reply(end.verdict, text=end.text)

    def _started(self) -> Box:
        if self._box is not None and self._box.alive:
            return self._box
        self._drop()
        if self._lent is not None and self._lent.idle:
            box, self._before = self._lent, self._lent.processor()
        else:
            box, self._before = Box(self.folder, self.limits, self.off), 0.0
            box.start()
        self._box = box
        self._baseline = watch.memory(box.zygote)
        if self.precompile:
            self.precompile = False
            if not self._compile(box):
                return self._started()
        return box

    def _compile(self, box: Box) -> bool:
        """Have the package's files compiled in there, and lay the results beside them: bytes, which only the sandbox
        reads. False if that has destroyed the sandbox; then each rank compiles for itself."""
        paths = sorted(
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*.py")
            if path.is_file() and not path.is_symlink()
        )[:MAX_COMPILED]
        end = Call(box, [({"root": SUBMISSION, "compile": paths}, b"")], self.deadline, self._baseline).run()
        if end.fatal:
            self._drop()
            return False
        found = values.unpack(end.answers[0])[1] if end.verdict == PASSED else {}
        for path in found:
            if path in paths:
                to = self.folder / importlib.util.cache_from_source(path)
                to.parent.mkdir(exist_ok=True)
                to.parent.chmod(0o755)  # its reader is another user
                to.write_bytes(found[path].numpy().tobytes())
                to.chmod(0o644)
        return True

    def _drop(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            self._count(box)
            box.close()

    def site(self, case: Case, folder: Path) -> BoxedSite:
        """A sandbox for torchrun: the reference's course, and in it of the submission the modules of the task."""
        root = composed(folder / "course", self.folder, case.root, case)
        return BoxedSite(root, folder, self.limits)

    def close(self) -> None:
        """End the sandbox, or leave the one that was lent as it was: no process of the submission stays."""
        if self._box is not None and self._box is self._lent and self._box.idle:
            self._count(self._box)
            self._box = None
        self._drop()

    def _count(self, box: Box) -> None:
        self.processor += max(0.0, box.processor() - self._before)

    def __enter__(self) -> "SandboxRunner":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

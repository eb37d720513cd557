"""Twenty-nine submissions of week 13, as a class hands them in: good, wrong, hanging, crashing, cheating.

Each is the reference with one edit, so what it must earn is known.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from grading.files import zipped
from grading.intake.arrival import Arrival, Key
from grading.mark import Mark
from grading.register.classes import init_class, open_class
from grading.register.counting import counting
from grading.register.people import everybody
from grading.register.submissions import add_submission
from labkit.checks.markers import strip
from labkit.checks.tasks import Week

RING, TIMING, COST, ORDER = "collectives.py", "timing.py", "cost_model.py", "topology.py"
_ALL_REDUCE = "    ### BEGIN SOLUTION 13.4 ring all-reduce\n"
_SCATTER = "    ### BEGIN SOLUTION 13.2 ring reduce-scatter\n"
_GATHER = "    ### BEGIN SOLUTION 13.3 ring all-gather\n"
_LAST_SCATTER = "return finish_(chunk[r], op, N)"
_STEPS = "    for s in range(N - 1):\n        acc"
_SEND = "        group.sendrecv(chunk[(r - s) % N], dst=right, src=left, out=chunk[(r - s - 1) % N])\n"


@dataclass(frozen=True)
class Made:
    """A submission: its kind, and the edits (file, old, new) that make it from the reference; old "": at the end."""

    name: str
    kind: str
    edits: tuple[tuple[str, str, str], ...] = ()


_READS = """    import glob, os
    here = os.path.abspath(__file__)
    found = [p for root in ("..", "../..", "/course", "/home", os.path.expanduser("~"))
             for p in glob.glob(root + "/*/collectives.py") + glob.glob(root + "/*/*/collectives.py")
             if os.path.abspath(p) != here]
    space = {}
    exec(open(found[0]).read(), space)
    return space["ring_all_reduce"](x_L, group, op)
"""

CLASS = (
    *(Made(f"good{n:02}", "good", ((RING, "", f"\n# handed in by student {n}\n"),)) for n in range(1, 13)),
    Made("blank", "wrong", (("*", "", ""),)),
    Made("wrong-chunk", "wrong", ((RING, _LAST_SCATTER, "return finish_(chunk[(r + 1) % N], op, N)"),)),
    Made("wrong-short", "wrong", ((RING, _STEPS, _STEPS.replace("N - 1", "N - 2")),)),
    Made("wrong-mean", "wrong", ((RING, _ALL_REDUCE, "    op = 'sum' if op == 'mean' else op\n" + _ALL_REDUCE),)),
    Made("wrong-copy", "wrong", ((RING, _ALL_REDUCE, "    x_L = x_L.clone()\n" + _ALL_REDUCE),)),
    Made("wrong-builtin", "wrong", ((RING, _ALL_REDUCE, "    return group.all_reduce(x_L, op)\n" + _ALL_REDUCE),)),
    Made("wrong-missing", "wrong", ((ORDER, "*", ""),)),
    Made(
        "hang-send-first",
        "hanging",
        (
            (
                RING,
                _SEND,
                "        group.send(chunk[(r - s) % N], dst=right)\n"
                "        group.recv(left, out=chunk[(r - s - 1) % N])\n",
            ),
        ),
    ),
    Made(
        "hang-early-return",
        "hanging",
        ((RING, _SCATTER, "    if group.rank == 0 and group.size > 1: return x_L\n" + _SCATTER),),
    ),
    Made("hang-loop", "hanging", ((RING, _ALL_REDUCE, "    while True: pass\n" + _ALL_REDUCE),)),
    Made("hang-sleep", "hanging", ((RING, _GATHER, "    import time; time.sleep(3600)\n" + _GATHER),)),
    Made("crash-raise", "crashing", ((RING, _SCATTER, "    raise IndexError('chunk out of range')\n" + _SCATTER),)),
    Made("crash-syntax", "crashing", ((TIMING, "", "\ndef broken(:\n"),)),
    Made("crash-segfault", "crashing", ((RING, _GATHER, "    import ctypes; ctypes.string_at(0)\n" + _GATHER),)),
    Made("crash-exit", "crashing", ((COST, "", "\nimport os\nos._exit(0)\n"),)),
    Made("cheat-read", "cheating", ((RING, _ALL_REDUCE, _READS + _ALL_REDUCE),)),
    Made(
        "cheat-patch",
        "cheating",
        (
            (
                RING,
                _ALL_REDUCE,
                "    import torch, pytest, labkit.checks.judge as j\n"
                "    torch.equal = torch.allclose = lambda *a, **k: True\n"
                "    j.same = lambda *a, **k: None\n    return x_L\n" + _ALL_REDUCE,
            ),
        ),
    ),
)


def grade_run(folder: Path, jobs: int) -> list[str]:
    """The command that grades week 13 of the class in a folder."""
    return [sys.executable, "-m", "grading.cli", "run", "week13", "--class", str(folder), "--jobs", str(jobs)]


def make_class(week: Week, folder: Path, chosen: Iterable[tuple[str, Made]]) -> None:
    """A class of these students, each with one submission of week 13."""
    every = dict(chosen)
    roster = folder.with_name(f"{folder.name}-roster.csv")
    roster.write_text("\n".join(["student", *every]))
    init_class(folder, roster, "UTC", [week])
    with open_class(folder, [week]) as cls:
        for student, made in every.items():
            whole = zipped({name: text.encode() for name, text in files(week, made)})
            arrival = Arrival(student, [Key("id", student)], whole, None, "folder", "the benchmark")
            add_submission(cls, week, arrival)


def marks_in(week: Week, folder: Path) -> dict[str, Mark]:
    """student -> mark, of the class in a folder."""
    with open_class(folder, [week]) as cls:
        people = {one.id: one.name for one in everybody(cls)}
        return {people[id]: one.mark for id, one in counting(cls, week.name).items() if one.mark}


def write(week: Week, folder: Path, made: Made) -> None:
    """The four modules of a submission into `folder`."""
    for name, text in files(week, made):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def files(week: Week, made: Made) -> Iterator[tuple[str, str]]:
    """The four modules of a submission: names and texts."""
    for name in (RING, TIMING, COST, ORDER):
        text = (week.folder / name).read_text(encoding="utf-8")
        for file, old, new in made.edits:
            if file == "*":
                text = strip(text)
            elif file == name and old == "*":
                text = ""
            elif file == name and old == "":
                text += new
            elif file == name:
                assert text.count(old) == 1, f"{made.name}: {old!r} stands {text.count(old)} times in {name}"
                text = text.replace(old, new)
        if text:
            yield name, text

"""`grade submission`: what an instructor decides of one submission: when it was handed in, whether it counts, and what
a misnamed file of it is called. Archives never change; a renamed file is read as if it had been called so."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from grading.intake.misnamed import refuse_rename
from grading.intake.names import count, shown, some
from grading.intake.submission import read_submission
from grading.register.counting import counting, handed_in
from grading.register.deadlines import read_time
from grading.register.people import person, resolve
from grading.register.schema import Class
from grading.register.submissions import Attempt, attempt, attempts, leave_out, rename, retime, withdraw
from labkit.errors import LabError
from labkit.strict import nearest

USAGE = "say it so: grade submission 17 time 2026-11-20T18:00+01:00, grade submission 17 withdraw, grade submission 17 "
USAGE += "without anna@example.org, or grade submission 17 rename 'collectives (1).py' collectives.py"


def correct(cls: Class, which: str, words: Sequence[str], *, undo: bool = False) -> Iterator[str]:
    """Do what the words say to a submission, or show it; sentences on what was done.

    which   its number; to withdraw, also the download from which all came
    words   (), ("time", TIME), ("withdraw",), ("without", MEMBER), ("rename", OLD, NEW) and with undo ("rename", OLD) too"""
    found = _which(cls, which)
    match list(words):
        case []:
            for one in found:
                yield from _shown(cls, one)
        case ["withdraw"]:
            yield from _withdraw(cls, found, undo)
        case ["time", text] if len(found) == 1 and not undo:
            retime(cls, found[0].id, read_time(cls, text))
            yield f"{named(cls, found[0])}: handed in {read_time(cls, text).isoformat(' ', 'minutes')}"
        case ["without", member] if len(found) == 1:
            leave_out(cls, found[0].id, who := resolve(cls, member), undo)
            yield f"{named(cls, attempt(cls, found[0].id))} counts {'again' if undo else 'no more'} for {who.name}"
        case ["rename", old, *new] if len(found) == 1 and (len(new) == 1 or (undo and not new)):
            yield _rename(cls, found[0], old, "" if undo else new[0])
        case _:
            raise LabError(USAGE)


def named(cls: Class, one: Attempt) -> str:
    """ "submission 17 of Anna Müller"; of a group all members, and who is unknown by the platform's name."""
    whose = [*(person(cls, id).name for id in one.members), *(f"{label} (unknown)" for label in one.labels)]
    return f"submission {one.id} of {some(whose, 10)}"


def _which(cls: Class, text: str) -> list[Attempt]:
    if text.isdecimal():
        return [attempt(cls, int(text))]
    every = [one for week in cls.weeks for one in attempts(cls, week.name, withdrawn=True)]
    found = [one for one in every if text in (one.source, Path(one.source).name)]
    if not found:
        sources = sorted({one.source for one in every})
        raise LabError(f"no submission came from {shown(text)}{nearest(text, sources)}: name a submission's number")
    return found


def _shown(cls: Class, one: Attempt) -> Iterator[str]:
    when = handed_in(cls.rules, one)
    yield f"{named(cls, one)}, {one.assignment}" + (f", withdrawn {one.withdrawn:%Y-%m-%d}" if one.withdrawn else "")
    yield f"    handed in {when.isoformat(' ', 'minutes') if when else 'nobody knows when'}"
    yield f"    from {shown(one.source)}, where it is called {shown(one.label)}"
    yield from (f"    {shown(old)} counts as {shown(new)}" for old, new in one.renamed)
    yield from (f"    {sentence}" for sentence in (*one.attention, *one.notes))


def _withdraw(cls: Class, found: Sequence[Attempt], undo: bool) -> Iterator[str]:
    changed = withdraw(cls, [one.id for one in found], undo=undo)
    word = "counts again" if undo else "counts no more"
    yield from (f"{named(cls, one)} {word}" for one in changed)
    if len(changed) < len(found):
        yield f"{count(len(found) - len(changed), 'submission')} did so already"
    for week in dict.fromkeys(one.assignment for one in changed):
        counted = counting(cls, week)
        for id in dict.fromkeys(id for one in changed if one.assignment == week for id in one.members):
            now = (
                f"submission {counted[id].submission.id} counts now"
                if id in counted
                else "nothing of theirs counts now"
            )
            yield f"{person(cls, id).name}, {week}: {now}"


def _rename(cls: Class, one: Attempt, old: str, new: str) -> str:
    """Let a file count under another name; new: "" takes that back."""
    names, where, week = dict(one.renamed), named(cls, one), cls.week(one.assignment)
    again = f"now `grade run {week.name} --student {one.id}`"
    if not new:
        if old not in names:
            raise LabError(f"{shown(old)} of {where} is not renamed: {', '.join(map(shown, names)) or 'nothing'} is")
        rename(cls, one.id, old, "")
        return f"{where}: {shown(old)} counts under its own name again; {again}"
    others = [(name, to) for name, to in one.renamed if name != old]
    refuse_rename(read_submission(cls.archive(week, one.id), others, where), week, old, new)
    rename(cls, one.id, old, new)
    return f"{where}: {shown(old)} counts as {shown(new)}; {again}"

"""What stands in the way of a week's points: what blocks publishing, and what is only said. Every way out asks here."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from grading.intake.arrival import PLATFORM
from grading.intake.names import shown, some
from grading.register.counting import current_marks, handed_in, lateness
from grading.register.marks import hand_marks
from grading.register.people import key_of, numbered, propose
from grading.register.schema import Class
from grading.register.standing import ABOVE, AGAIN, BY_HAND, FAULTY, MISSING, NOT_GRADED, Standing, standings
from grading.register.submissions import BY_HAND as TIMED_BY_HAND
from grading.register.submissions import Attempt, attempts
from labkit.checks.tasks import Week

# Kinds, beside the states of grading.register.standing.
UNKNOWN, UNTIMED, MISNAMED, POORER, WITHDRAWN = "unknown", "untimed", "misnamed", "poorer", "withdrawn"
INEXACT = "late by an inexact time"
ELSEWHERE = "points by hand of another attempt"
UNSANDBOXED, ATTENTION = "unsandboxed", "attention"


@dataclass(frozen=True)
class Problem:
    """kind: a word; blocks: nothing is published while it holds; sentence: what is so; command: what ends it, to be
    pasted; "" where nothing that is typed does."""

    kind: str
    blocks: bool
    sentence: str
    command: str = ""


def problems(cls: Class, week: Week) -> list[Problem]:
    """All problems of a week, those that block first."""
    here, kept = standings(cls, week), attempts(cls, week.name)
    return [
        *_unknown(cls, kept),
        *_states(here, week),
        *_inexact(cls, here, kept),
        *_of_attempts(cls, week, here, kept),
        *_withdrawn(cls, week, here),
    ]


def _unknown(cls: Class, kept: Iterable[Attempt]) -> list[Problem]:
    """One for each name under which something was handed in that belongs to nobody."""
    found: dict[str, list[int]] = {}
    for one in kept:
        for label in one.labels:
            found.setdefault(label, []).append(one.id)
    out = []
    for label, numbers in found.items():
        close = (own := numbered(cls, label)) or propose(cls, label)
        key = key_of(cls, close) if close else "E-MAIL OR ID"
        maybe = f"; {shown(close.name, 60)}{', who left,' if close.left_at else ''} may be meant" if close else ""
        maybe += ", by the number: or a group, which needs the key of each member" if own else ""
        said = f"nobody of the class is {shown(label, 60)}, whose submission is {some(list(map(str, numbers)))}{maybe}"
        command = f"grade who {shlex.quote(label)} = {shlex.quote(key) if close else key}"
        out.append(Problem(UNKNOWN, True, said, command))
    return out


def _states(here: Iterable[Standing], week: Week) -> list[Problem]:
    """One for each state in which somebody's points are not what they will be."""
    said = {
        NOT_GRADED: ("not graded as it counts now", f"grade run {week.name}"),
        FAULTY: ("the grader itself failed there, which is no zero; so a person must look", f"grade run {week.name}"),
        BY_HAND: ("a written task is to be graded", f"grade mark {week.name}"),
        AGAIN: ("what points were given for by hand has changed since", f"grade mark {week.name}"),
        ABOVE: (
            "more points were typed than the task has; what is meant as a bonus is extra credit",
            f"grade mark {week.name}",
        ),
        MISSING: ("nothing was handed in", ""),
    }
    out = []
    for state, (sentence, command) in said.items():
        names = [one.person.called for one in here if one.state == state]
        if names:
            out.append(Problem(state, False, f"{sentence}: {some(names)}", command))
    return out


def _inexact(cls: Class, here: Iterable[Standing], kept: Iterable[Attempt]) -> list[Problem]:
    """One for each attempt, counted or not, from which lateness takes points by a time that is no time of its own."""
    out, by_number = dict[int, Problem](), {one.id: one for one in kept}
    for standing in here:
        for number in standing.counted.attempts if standing.counted and not standing.excused else ():
            one = by_number[number]
            cost = lateness(cls.rules, handed_in(cls.rules, one), standing.due)
            if one.timed in (PLATFORM, TIMED_BY_HAND) or cost.factor == 1:
                continue
            known = "--received is only the latest that it can be" if one.timed else "it counts as just late"
            said = f"{number} ({shown(standing.person.called, 60)}) has no submission time, and {known}: "
            said += f"the late penalty is {100 * (1 - cost.factor):.4g} %"
            out.setdefault(number, Problem(INEXACT, False, said, f"grade submission {number} time TIME"))
    return list(out.values())


def _of_attempts(cls: Class, week: Week, here: Iterable[Standing], kept: Iterable[Attempt]) -> list[Problem]:
    """What is odd about attempts that count."""
    out, marks, seen, untimed = [], current_marks(cls, week.name), set[int](), dict[int, str]()
    by_hand = hand_marks(cls, week.name)
    by_number = {one.id: one for one in kept}
    for standing in here:
        if standing.counted is None or standing.excused or standing.counted.submission.id in seen:
            continue
        one, mark, name = standing.counted.submission, standing.mark, shown(standing.person.called, 60)
        seen.add(one.id)
        if handed_in(cls.rules, one) is None and one.late is not False and week.name in cls.rules.deadlines:
            untimed[one.id] = f"{one.id} ({name})"
        if mark is None:
            continue
        for path, like in mark.missing.items():
            if like:
                own = like.rpartition("/")[0]
                command = ["grade", "submission", str(one.id), "rename", like, f"{own}/{path}" if own else path]
                said = f"{name} handed in no {path}, but {shown(like)} looks like it"
                out.append(Problem(MISNAMED, False, said, shlex.join(command)))
        earlier = [marks[n] for n in standing.counted.attempts if n != one.id and n in marks and n < one.id]
        lacks = [sorted(set(mark.missing) - set(before.missing)) for before in earlier]
        if any(lacks):
            said = f"submission {one.id} of {name} lacks {some(max(lacks, key=len))}, which an earlier one has"
            out.append(Problem(POORER, False, said, f"grade submission {one.id} withdraw"))
        others = {n: by_hand[n] for n in standing.counted.attempts if n != one.id and n in by_hand}
        given = {id for theirs in others.values() for id, g in theirs.items() if g.points is not None or g.extra}
        if lost := given - set(by_hand.get(one.id, ())):
            said = f"points by hand of {name} in {some(sorted(lost))} are of submission {some(list(map(str, others)))}"
            out.append(Problem(ELSEWHERE, False, f"{said}, and {one.id} counts", f"grade mark {week.name}"))
        if standing.unsandboxed:
            said = f"submission {one.id} of {name} ran with your own rights, and could have changed its mark"
            out.append(Problem(UNSANDBOXED, False, said, f"grade run {week.name}"))
        attention = dict.fromkeys((*by_number[one.id].attention, *mark.attention))
        out += [Problem(ATTENTION, False, f"{name}, submission {one.id}: {said}") for said in attention]
    if untimed:
        said = f"these have no submission time, and count as in time: {some(list(untimed.values()))}"
        out.insert(0, Problem(UNTIMED, False, said, f"grade submission {next(iter(untimed))} time TIME"))
    return out


def _withdrawn(cls: Class, week: Week, here: Iterable[Standing]) -> list[Problem]:
    """One for each person of whom everything was withdrawn: they count as if they had handed nothing in."""
    last = {member: one.id for one in attempts(cls, week.name, withdrawn=True) for member in one.members}
    return [
        Problem(
            WITHDRAWN,
            False,
            f"all that {shown(one.person.called, 60)} handed in is withdrawn",
            f"grade submission {last[one.person.id]} withdraw --undo",
        )
        for one in here
        if one.counted is None and not one.excused and one.person.id in last
    ]

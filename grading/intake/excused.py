"""Who is excused from a week, by [excused] in course.toml: for them it has neither a zero nor points that are possible.

A student is meant by our id, by another name that [ids] has, or by any name under which the roster has their line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from grading.intake.names import shown
from grading.intake.pending import entries_of
from grading.intake.policy import Rules
from grading.intake.roster import NOT_THERE, Line, Roster, close_to, find, of_rules
from grading.marks import unquoted
from labkit.checks.tasks import find_weeks


@dataclass
class Excused:
    """The excused of one week: `student in Excused("week13", rules, who)`."""

    week: str
    rules: Rules
    who: Roster | None = None

    @property
    def names(self) -> list[str]:
        return self.rules.excused.get(self.week, [])

    @cached_property
    def _lines(self) -> set[int]:
        lines = (self._line(name) for name in self.names)
        return {id(line) for line in lines if line is not None}

    def _line(self, student: str) -> Line | None:
        return find(student, self.who, self.rules)[0] if self.who is not None else None

    def __contains__(self, student: str) -> bool:
        if not self.names:
            return False
        return self.rules.is_excused(student, self.week) or id(self._line(student)) in self._lines

    def elsewhere(self, here: Iterable[str]) -> list[str]:
        """The ids of those who are neither among `here` nor in the roster."""
        known = {self.rules.id_of(student) for student in here}
        ids = dict.fromkeys(self.rules.id_of(name) for name in self.names if self._why(name) == NOT_THERE)
        return [id for id in ids if id not in known]

    def not_found(self) -> list[str]:
        """Names for which the roster has nobody, or several."""
        return [name for name in self.names if self._why(name)]

    def unknown(self, here: Sequence[str], marks: Path, submissions: Path) -> list[str]:
        """Names that excuse nobody whom anything tells of. `here`: those of whom something of this week is here; the
        folders are searched for other weeks'."""
        ids = {self.rules.id_of(student) for student in here}
        unknown = [name for name in self.names if self.rules.id_of(name) not in ids and self._why(name)]
        ids |= {self.rules.id_of(student) for student in (of_any_week(marks, submissions) if unknown else ())}
        return [name for name in unknown if self.rules.id_of(name) not in ids]

    def slips(self, here: Sequence[str], marks: Path, submissions: Path) -> list[str]:
        """Sentences on names that excuse nobody: see `unknown`."""
        if not (unknown := self.unknown(here, marks, submissions)):
            return []
        lines = self.who.lines if self.who is not None else []
        called = [*here, *of_any_week(marks, submissions), *(name for line in lines for name in line.names)]
        told = []
        for name in unknown:
            said = f"[excused] in course.toml, {self.week}, speaks of {shown(name, 60)}"
            if (why := self._why(name)) != NOT_THERE:
                told.append(f"{said}, and {why}: name one as `grade status {self.week}` does")
                continue
            close = close_to(name, called)
            where = f"{self.who.path.name}, the marks" if self.who is not None else "the marks"
            told.append(
                f"{said}, who is not in {where} or the hand-ins"
                + (f": did you mean {shown(close[0], 60)}?" if close else "")
            )
        return told

    def _why(self, name: str) -> str:
        """Why the roster has nobody of this name; "" if it has."""
        return find(name, self.who, self.rules)[1] if self.who is not None else NOT_THERE


def excused_of(week: str, rules: Rules) -> Excused:
    """The excused of a week, by the names of course.toml's roster too. It is read only if somebody is excused."""
    return Excused(week, rules, of_rules(rules) if rules.excused.get(week) else None)


def of_any_week(marks: Path, submissions: Path) -> list[str]:
    """Everybody of whom a mark or a hand-in is here."""
    found = []
    for week in find_weeks():
        folder = marks / week.name
        found += [unquoted(path.name) for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        found += [entry.student for entry in entries_of(submissions, week)]
    return sorted(set(found))

"""Moodle's grading worksheet beside its download: whose a number is, and who is in a group.

    since 4.1    GROUP_GROUPID_assignsubmission_file          one folder a group (mod/assign/classes/downloader.php)
    before       GROUP-NAME_NUMBER_assignsubmission_file_     one for each member (mod/assign/locallib.php)

A group's id is no participant's number, and may be the same as somebody's.
"""

import html

from grading.intake.arrival import Key
from grading.intake.guesses import Guess
from grading.intake.names import in_moodles_files
from grading.intake.rosters import Line, Roster


class Worksheet:
    """Answers for the names in a download; without a worksheet it knows nobody. `week`: the assignment's name."""

    def __init__(self, sheet: Roster | None, week: str) -> None:
        self.sheet, self.week = sheet, week
        self.numbers = {line.participant: line for line in (sheet.lines if sheet else []) if line.participant}

    def line(self, guess: Guess) -> Line | None:
        """The line of a participant, if the name is theirs as well."""
        line = self.numbers.get(guess.number)
        return line if line and _is_called(guess.name, line) else None

    def members(self, guess: Guess) -> tuple[str, list[Line]]:
        """(a group, its lines) if its folder is called so, which is what a file's name leaves of the group's name."""
        lines, group, one = self.sheet.lines if self.sheet else [], guess.name, self.numbers.get(guess.number)
        if one and one.group and in_moodles_files(group) == _as_member(one):
            return one.group, [line for line in lines if line.group == one.group]
        theirs = [line for line in lines if group and group in _folders(line)]
        several = len({line.group for line in theirs}) > 1  # Team 1 and Team_1: nobody can tell
        return guess.label, [] if several or any(line.name == group for line in lines) else theirs

    def keys(self, line: Line) -> tuple[Key, ...]:
        """Every key of a line's person."""
        number = [Key("moodle", line.participant, self.week)] if line.participant else []
        return (*line.keys, *number, *([Key("name", line.name)] if line.name else []))


def _folders(line: Line) -> tuple[str, str]:
    """How the folder of this line's group may be called: "Mo & Di" is "Mo  Di", or "Mo amp; Di" (format_string)."""
    return in_moodles_files(line.group), in_moodles_files(html.escape(line.group, quote=False))


def _is_called(name: str, line: Line) -> bool:
    """Whether Moodle's files call the one of this line so. Under blind marking the worksheet has no names."""
    return in_moodles_files(name) == in_moodles_files(line.name) if line.name else not name


def _as_member(line: Line) -> str:
    """How Moodle before 4.1 calls the folder of a group's answer, once for each member."""
    return f"{in_moodles_files(line.group)}-{in_moodles_files(line.name)}"

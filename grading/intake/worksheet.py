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

    def members(self, group: str) -> list[Line]:
        """The lines of a group whose folder is called so, which is what a file's name leaves of the group's name."""
        lines = self.sheet.lines if self.sheet else []
        theirs = [line for line in lines if group and group in _folders(line)]
        several = len({line.group for line in theirs}) > 1  # Team 1 and Team_1: nobody can tell
        return [] if several or any(line.name == group for line in lines) else theirs

    def keys(self, line: Line) -> tuple[Key, ...]:
        """Every key of a line's person."""
        number = [Key("moodle", line.participant, self.week)] if line.participant else []
        return (*line.keys, *number, *([Key("name", line.name)] if line.name else []))


def _folders(line: Line) -> tuple[str, str]:
    """How the folder of this line's group may be called: "Mo & Di" is "Mo  Di", or "Mo amp; Di" (format_string)."""
    return in_moodles_files(line.group), in_moodles_files(html.escape(line.group, quote=False))


def _is_called(name: str, line: Line) -> bool:
    """Whether Moodle's files call the one of this line so; before Moodle 4.1 with the group in front. Under blind
    marking the worksheet has no names."""
    own, group = in_moodles_files(line.name), in_moodles_files(line.group)
    return in_moodles_files(name) in (own, f"{group}-{own}") if line.name else not name

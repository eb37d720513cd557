"""What a group handed in, of which Moodle gives one folder: each of its members has handed it in.

    since 4.1    GROUP_GROUPID_assignsubmission_file          one folder a group (mod/assign/classes/downloader.php)
    before       GROUP-NAME_NUMBER_assignsubmission_file_     one for each member (mod/assign/locallib.php)

A group's id is no participant's number, and may be the same as somebody's. Who is in a group stands in the column Group
of this assignment's grading worksheet; another assignment has other numbers, and may have other groups.
"""

from __future__ import annotations

from dataclasses import replace

from grading.intake.find import Entry, Found
from grading.intake.names import shown, some
from grading.intake.roster import Line, Roster, members, participant_of

NOTHING = "No submission"  # how Moodle's Status begins of whom nothing is there


def by_member(found: Found, roster: Roster | None) -> Found:
    """The entries of a source, and in place of a group's one of each member. `notes` tell whose they are."""
    if roster is None:
        return found
    entries: list[Entry] = []
    notes = list(found.notes)
    for entry in found:
        group = entry.participant.rpartition("_")[0] or entry.student
        lines = members(group, roster)
        whose = entry.participant or entry.student
        theirs = [
            replace(entry, student=_called(line, roster), participant=participant_of(line), group=whose)
            for line in lines
        ]
        entries += theirs or [entry]
        if theirs:
            who = some([one.student for one in theirs], 12)
            notes.append(f"{shown(group)} is a group of {roster.path.name}: what it handed in is kept for {who}")
            if all(line.cells.get("Status", "").startswith(NOTHING) for line in lines):
                notes.append(
                    f"{roster.path.name} says that nobody of {shown(group)} handed in: is it this assignment's?"
                )
    return Found(sorted(entries, key=lambda one: (one.student, one.attempt)), notes, found.without)


def group_name(group: str) -> str:
    """ "Group A" of "Group A_4711"."""
    name, _, id = group.rpartition("_")
    return name if id.isdigit() else group


def _called(line: Line, roster: Roster) -> str:
    """As `grade collect` calls them: two of one name by name and number."""
    alone = sum(line.name == one.name for one in roster.lines) == 1
    return line.name if line.name and alone else participant_of(line)

"""What arrives: one attempt out of a download, with every key by which its platform knows whoever handed it in.

Whose it is, the register says (grading/register); nothing in this package does.
"""

import unicodedata
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from grading.intake.names import clean


@dataclass(frozen=True)
class Key:
    """What a platform calls somebody: "canvas" (its user number), "moodle" (the participant's number in `assignment`),
    "nbgrader" (the login), "id", "email", or "name", which only proposes."""

    platform: str
    value: str
    assignment: str = ""

    @property
    def row(self) -> tuple[str, str, str]:
        """(platform, assignment, value) as the store has them: composed, and e-mails in small letters."""
        value = unicodedata.normalize("NFC", clean(self.value)).strip()
        return self.platform, self.assignment, value.casefold() if self.platform == "email" else value


PLATFORM: Literal["platform"] = "platform"
GIVEN: Literal["given"] = "given"


@dataclass
class Arrival:
    """One attempt as it was found in a download.

    label      what the platform calls its author, shown to people
    keys       whose it is, by the platform; a group's own, if `members` has the persons'
    files      one zip: its bytes, or where it lies
    received   when it was handed in, with its zone; None: unknown
    how        "canvas", "moodle", "nbgrader", "gradescope", "ilias", "blackboard" or "folder"
    source     the download's name
    late       the platform's own mark; None if there is none
    group      what the platform calls the group that handed it in; members: the keys of each of them
    notes      sentences for the student; attention: for the instructor
    timed      GIVEN: `received` is what an instructor said of the whole download
    download   sha256 of the download, if it is one file
    """

    label: str
    keys: list[Key]
    files: bytes | Path
    received: datetime | None
    how: str
    source: str
    late: bool | None = None
    group: str = ""
    members: list[list[Key]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    attention: list[str] = field(default_factory=list)
    timed: Literal["platform", "given"] = PLATFORM
    download: str = ""

"""A student's id in nbgrader: the id itself where that is harmless, else with "=3C" and the like in it.

nbgrader puts ids into folder names, shell patterns and addresses (unquoted: a "%" there would be decoded on the way),
and unescaped into its pages and their scripts. On many learning platforms students choose their display name, and with
it the name of the file that is downloaded.
"""

from __future__ import annotations

import unicodedata
from urllib.parse import quote, unquote

from labkit.errors import LabError

PLAIN = " _-.@+,~'()"  # besides letters, marks and digits of any script
LONGEST = 128  # nbgrader's column
EMPTY = "=00"


def gradebook_id(student: str) -> str:
    """The id under which nbgrader knows a student: "Åsa O'Brien" stays, "<b>" becomes "=3Cb=3E".

    Different ids stay different. LabError for one that does not fit nbgrader's column."""
    if _is_plain(student):
        name = student
    else:
        name = quote(student, safe="_-@+,~").replace(".", "%2E").replace("%", "=") or EMPTY
    if len(name) > LONGEST or len(name.encode()) > 200:
        raise LabError(
            f"a student's id must fit nbgrader's {LONGEST} characters; this one does not: {student[:40]!r}..."
        )
    return name


def student_of(gradebook_id: str) -> str:
    """The inverse of `gradebook_id`."""
    return "" if gradebook_id == EMPTY else unquote(gradebook_id.replace("%", "%25").replace("=", "%"))


def _is_plain(student: str) -> bool:
    return (
        student == student.strip(" .") != ""
        and unicodedata.is_normalized("NFC", student)
        and all(c in PLAIN or unicodedata.category(c)[0] in "LMN" for c in student)
    )

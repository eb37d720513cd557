"""What Moodle imports: its own grading worksheet with the grades filled in.

In Moodle: the assignment, View all submissions, Grading action, Download grading worksheet ("Offline grading worksheet"
in the assignment's feedback types). The file comes back by "Upload grading worksheet". Moodle finds a student by the
column Identifier, takes the number from the column Grade, and passes over lines whose cell is empty
(mod/assign/feedback/offline/importgradeslib.php, Moodle 4.5). Nothing else of the file is changed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from grading.intake.policy import Rules
from grading.intake.roster import MOODLE, UNDER_TWO_NAMES, Absent, Line, Roster, find, twice
from grading.reports import page
from grading.reports.canvas import Written, names
from grading.reports.standing import Standing
from labkit.checks.outcome import number
from labkit.checks.tasks import Week
from labkit.errors import LabError

GRADE, MAXIMUM = "Grade", "maximum grade"  # the latter in any case: Moodle's versions differ


def export(
    week: Week,
    standings: Sequence[Standing],
    to: Path,
    roster: Roster,
    rules: Rules,
    *,
    zeros: Sequence[Absent] = (),
    told: Sequence[str] = (),
) -> Written:
    """Write the worksheet. `zeros`: those who handed nothing in and get a zero. `told`: what else is to be said.

    LabError for another file than Moodle's worksheet, and one whose maximum grade is not this week's points."""
    if roster.system != MOODLE or GRADE not in roster.columns:
        raise LabError(
            f"{roster.path} is not Moodle's grading worksheet, with the columns Identifier, Full name and Grade: "
            "download it from the assignment (Grading action, Download grading worksheet)"
        )
    points = number(week.points("auto", "written"))
    maximum = next((column for column in roster.columns if column.lower() == MAXIMUM), "")
    for line in roster.lines:
        most = line.cells.get(maximum, "").replace(",", ".").strip()
        if most and not re.fullmatch(rf"{re.escape(str(points))}(\.0*)?", most):
            raise LabError(
                f"{roster.path}: the assignment's maximum grade in Moodle is {most}, and {week.name} has {points} "
                "points: set it there, and download the worksheet again"
            )
    left: dict[str, list[str]] = {}
    grades: dict[int, float] = {}
    double = {student for those in twice([s.student for s in standings], roster, rules) for student in those}
    for s in standings:
        own, why = find(s.student, roster, rules)
        if s.excused:
            left.setdefault("excused: a grade that Moodle has already stays", []).append(s.student)
        elif s.student in double:
            left.setdefault(UNDER_TWO_NAMES, []).append(s.student)
        elif own is None or s.total is None:
            left.setdefault(why or s.state, []).append(s.student)
        else:
            grades[id(own)] = s.total
    for one in zeros:
        own, _ = find(one.student, roster, rules)
        if own is not None:
            grades.setdefault(id(own), 0)
    others = [s.student for s in standings if _is_of_another(s.student, find(s.student, roster, rules)[0], rules)]
    if others:
        told = [
            *told,
            f"{roster.path} has other numbers than what was collected of {week.name} ({names(others)}): is it this "
            "assignment's worksheet?",
        ]
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(roster.columns)
    for line in roster.lines:
        grade = grades.get(id(line))
        cells = {**line.cells, GRADE: "" if grade is None else f"{number(grade)}"}
        writer.writerow([cells[column] for column in roster.columns])
    out_of_it = [f"{page.count(len(who), 'student')} left out ({why}): {names(who)}" for why, who in left.items()]
    return Written(page.write(to, out.getvalue()), len(grades), [*out_of_it, *told])


def _is_of_another(student: str, line: Line | None, rules: Rules) -> bool:
    """Whether the line has another number than Moodle's downloads of this week had for the student."""
    theirs = rules.participants(student).values()
    if line is None or not theirs:
        return False
    number = line.cells["Identifier"].strip().rpartition(" ")[2]
    return not any(one.endswith(f"_{number}") for one in theirs)

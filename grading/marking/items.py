"""The items of a rubric, and a marker's comment as points by item.

The rubric is the table in the week's notebook, under the heading of the written task: the column "points" and what
stands beside it. Items are numbered from 1 in its order. There is no second copy: what students read is what is marked.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from grading.intake.names import count, shown
from grading.marking.cells import read_notebook, rubric
from labkit.checks.outcome import number
from labkit.checks.tasks import Task, Week
from labkit.errors import LabError

_LINE = re.compile(r"\s*(?P<item>\d{1,2})\s*[:=]\s*(?P<points>\d+(?:[.,]\d+)?)(?P<rest>(?:\s.*)?)")
_BEGIN = re.compile(r"\s*\d{1,2}\s*[:=]\s*\d")
_CODE = re.compile(r"#(?P<code>[A-Za-z][\w-]*)")


@dataclass(frozen=True)
class Item:
    """One line of a rubric."""

    number: int
    title: str
    points: float


@dataclass
class Marking:
    """What a marker wrote on one answer.

    points    item -> points
    words     item -> codes and words beside its points; 0: lines that belong to no item
    faults    sentences on what cannot be meant
    """

    points: dict[int, float] = field(default_factory=dict)
    words: dict[int, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def total(self) -> float:
        return float(sum(self.points.values()))


def items(week: Week, task: Task) -> list[Item]:
    """The rubric of a written task. LabError if its table does not add up to the task's points."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in rubric(read_notebook(week.notebook), task).splitlines()
        if line.lstrip().startswith("|")
    ]
    rows = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    if not rows or "points" not in rows[0]:
        raise LabError(f"{week.notebook}: task {task.id} has no table with a column 'points'")
    at = rows[0].index("points")
    lines = [row for row in rows[1:] if len(row) == len(rows[0]) and re.fullmatch(r"\d+(\.\d+)?", row[at])]
    found = [Item(n, _title(row, at), float(row[at])) for n, row in enumerate(lines, 1)]
    if (total := sum(item.points for item in found)) != task.points:
        raise LabError(
            f"{week.notebook}: the rubric of {task.id} adds up to {total:g}, and the task has {task.points:g}"
        )
    return found


def _title(row: list[str], at: int) -> str:
    """ "predictions 1 to 7"; where the first column names a part only, "a: Ring bytes of the four messages"."""
    words = [cell for place, cell in enumerate(row) if place != at and cell]
    return f"{words[0]}: {words[1]}" if len(words) > 1 and len(words[0]) <= 2 else words[0]


def read(comments: Iterable[str], rubric_items: Iterable[Item], known: Mapping[str, str]) -> Marking | None:
    """A marking out of formgrader's comments; None if they give no item any points.

    known   code -> sentence, of course.toml's [comments]"""
    by_number = {item.number: item for item in rubric_items}
    marking, comments = Marking(), list(comments)
    for line in (line for comment in comments for line in comment.splitlines()):
        found = _LINE.fullmatch(line)
        place, rest = (int(found["item"]), found["rest"].strip()) if found else (0, line.strip())
        if found and place in by_number:
            points = float(found["points"].replace(",", "."))
            most = by_number[place].points
            if points > most:
                marking.faults.append(
                    f"item {place} has {count(number(points), 'point')}, and {number(most)} are possible"
                )
            if place in marking.points:
                marking.faults.append(f"item {place} is there twice")
            marking.points[place] = points
        elif found:
            marking.faults.append(f"there is no item {place}: the last is {max(by_number)}")
        marking.faults += unknown_codes(rest, known)
        if rest:
            marking.words.setdefault(place if place in by_number else 0, []).append(rest)
    if not marking.points:
        return None
    if missing := sorted(set(by_number) - set(marking.points)):
        marking.faults += [f"item {place}, {by_number[place].title}, has no points" for place in missing]
        marking.faults += crowded(comments)
    return marking


def crowded(comments: Iterable[str]) -> list[str]:
    """Sentences on lines that begin as an item does and are none, `1: 5; 2: 9` or `1: 5/8`."""
    lines = [line for comment in comments for line in comment.splitlines() if not _LINE.fullmatch(line)]
    return [
        f"`{shown(line.strip(), 40)}` is no item: one item a line, and a space before words"
        for line in lines
        if _BEGIN.match(line)
    ]


def unknown_codes(text: str, known: Mapping[str, str]) -> list[str]:
    """Sentences on codes that stand for nothing: students would read the codes."""
    return [f"#{code} is in no [comments] of course.toml" for code in _CODE.findall(text) if code not in known]


def expanded(comment: str, rubric_items: Iterable[Item], known: Mapping[str, str]) -> str:
    """A comment as the student reads it: items by their titles, codes as their sentences. Others stay as they are."""
    rubric_items = list(rubric_items)
    marking = read([comment], rubric_items, known)
    if marking is None:
        return _CODE.sub(lambda code: known.get(code["code"], code[0]), comment)
    lines = []
    for item in rubric_items:
        if item.number in marking.points:
            lines.append(f"{item.title}: {number(marking.points[item.number])} of {number(item.points)}")
            lines += [f"    {_sentences(words, known)}" for words in marking.words.get(item.number, ())]
    return "\n".join([*lines, *(_sentences(words, known) for words in marking.words.get(0, ()))])


def _sentences(words: str, known: Mapping[str, str]) -> str:
    return _CODE.sub(lambda code: known.get(code["code"], code[0]), words)

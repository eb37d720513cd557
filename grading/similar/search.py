"""`grade similar`: every attempt of the class, of earlier years and the course's own solutions, compared and shown."""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grading.intake.names import count
from grading.intake.submission import read_submission
from grading.publish.page import PUBLISHED
from grading.register.classes import open_class
from grading.register.people import everybody
from grading.register.schema import Class
from grading.register.submissions import attempts
from grading.run import reference_submission
from grading.similar import compare, page
from labkit.checks.tasks import Week
from labkit.errors import LabError


def search(cls: Class, week: Week, earlier: Sequence[Path], console: Console) -> Path:
    """Write the page of the pairs, and print the most alike. earlier: class folders.

    LabError without copydetect, and for a folder that is no class's."""
    if importlib.util.find_spec("copydetect") is None:
        raise LabError("copydetect is not installed: run `make grading`, or pip install copydetect==0.5.0")
    with console.status("reading ...") as status:
        pairs, works, unread = compare.compare(
            week,
            _every(cls, week, earlier),
            ours=reference_submission(week),
            progress=lambda who: status.update(f"reading {who}"),
        )
    to = page.write(week, pairs, len(works), unread, cls.folder / PUBLISHED / week.name / "similar.html")
    for pair in pairs[:20]:
        most = f"most alike: {pair.functions[0][0]}, {pair.functions[0][1]:.0%}"
        console.print(Text(f"{pair.first.name} and {pair.second.name}: {pair.share:.0%}, {pair.shared} nodes; {most}"))
    works_ = count(len(works), "submission")
    alike = count(len(pairs), f"pair of {works_} shares", f"pairs of {works_} share")
    console.print(f"{alike} much; side by side in {to}", highlight=False, soft_wrap=True)
    for student in unread:
        console.print(Text(f"{student}: none of the tasks' functions is finished, or can be read"))
    return to


def _every(cls: Class, week: Week, earlier: Sequence[Path]) -> Iterator[compare.Source]:
    yield from _of(cls, week, "")
    for folder in earlier:
        with open_class(folder, cls.weeks) as other:
            yield from _of(other, week, folder.resolve().name)


def _of(cls: Class, week: Week, year: str) -> Iterator[compare.Source]:
    """Every attempt of a class. Of a group's members none has copied from another."""
    of = {who.id: who for who in everybody(cls, gone=True)}
    for one in attempts(cls, week.name):
        shown = [of[id].called for id in one.members]
        submission = read_submission(cls.archive(week, one.id), one.renamed, " & ".join([*shown, *one.labels]))
        owners = frozenset([*(f"{year} {id}" for id in one.members), *one.labels])
        yield compare.Source(submission, year, one.id, owners)

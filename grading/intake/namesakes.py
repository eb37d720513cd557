"""Two students of one name, in Moodle's downloads that come one after the other.

Moodle calls a student by name and number, "Max Meier_500", here a participant. A download that holds one Max Meier
alone does not say which: so receipts keep the participant, and another number under a known name is another student.

    who came first and alone    keeps the bare name as id: "Max Meier"
    the other one               has the participant as id: "Max Meier_501"

A number is the assignment's own, so it says something within one week only.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grading.intake.find import Entry, apart
from grading.intake.names import shown, some
from grading.intake.pending import entries_of
from grading.intake.policy import Rules
from grading.intake.receipts import MARKER, Receipt, read_receipts, read_withdrawn
from grading.marks import unquoted
from labkit.checks.tasks import Week

Digested = tuple[Entry, str]  # an entry and the digest of its content


def in_week(rules: Rules, entries: Iterable[Entry]) -> Rules:
    """The rules, which know now who has which number in the week of these entries."""
    numbers: dict[str, dict[int, str]] = {}
    for entry in entries:
        if entry.participant:
            numbers.setdefault(entry.student, {})[entry.attempt] = entry.participant
    return rules.knowing(numbers)


def of_week(rules: Rules, submissions: Path, week: Week) -> Rules:
    """The same, of what lies in the folder of hand-ins; nothing where there is none."""
    return in_week(rules, entries_of(submissions, week))


def told_apart(digests: Sequence[Digested], notes: list[str], root: Path, week: Week, rules: Rules) -> list[Digested]:
    """The entries of a source, each called as its student is in this week's collection. `notes` of the source become
    those of the collection."""
    names: dict[str, _Name] = {}
    for entry, digest in digests:
        if name := _name(entry.participant):
            names.setdefault(name, _Name(name, week)).source.append((entry, digest))
    if not names:
        return list(digests)
    for receipt in sorted(read_receipts(root, week.name), key=lambda one: (one.student, one.attempt)):
        for name in {receipt.called or receipt.student, _name(_who(receipt))} & names.keys():
            names[name].kept.append(receipt)
    for receipt in read_withdrawn(root):
        for name in {receipt.called or receipt.student, _name(_who(receipt))} & names.keys():
            names[name].back.append(receipt)
    elsewhere = _elsewhere(root)
    new: dict[int, Entry] = {}
    for one in names.values():
        theirs = [replace(entry, student=one.called(entry, rules)) for entry, _ in one.source]
        new |= {id(entry): called for (entry, _), called in zip(one.source, theirs)}
        one.tell(notes, theirs, rules)
        notes += [*one.unclear(theirs), *one.named_since(theirs, rules), *one.elsewhere(theirs, elsewhere, rules)]
    return [(new.get(id(entry), entry), digest) for entry, digest in digests]


@dataclass
class _Name:
    """All who are called so: in the source, among what is kept, among what was withdrawn."""

    name: str
    week: Week
    source: list[Digested] = field(default_factory=list)
    kept: list[Receipt] = field(default_factory=list)
    back: list[Receipt] = field(default_factory=list)

    def called(self, entry: Entry, rules: Rules) -> str:
        """What an entry's student is called in this week."""
        if mine := [one for one in self.kept if _who(one) == entry.participant]:
            return mine[0].called or mine[0].student
        if entry.student not in (self.name, entry.participant):
            return entry.student  # an id, out of another collection
        if self._by_ids(entry, rules):
            return entry.participant
        if mine := [one for one in self.back if _who(one) == entry.participant]:
            return mine[0].called or mine[0].student
        here = [*self.kept, *self.back]
        bare = [one for one in here if self._is_bare(one)]
        if not here:
            return entry.student
        if not bare or any(one.participant for one in bare):
            return entry.participant
        rivals = [(one, digest) for one, digest in self.source if self._is_new(one)]
        if len(rivals) == 1 and len(bare) == len(here):
            return self.name
        same = {one.participant for one, digest in rivals if digest in [old.digest for old in bare]}
        return self.name if same == {entry.participant} else entry.participant

    def tell(self, notes: list[str], theirs: Sequence[Entry], rules: Rules) -> None:
        """Put a sentence on who is who in place of the source's own, if that is not what holds here."""
        people = {_who(one): one.student for one in self.kept if _name(_who(one)) == self.name}
        for entry in theirs:
            people.setdefault(entry.participant, rules.id_of(entry.student))
        if len(set(people.values())) == 1 or [one.student for one, _ in self.source] == [one.student for one in theirs]:
            return
        who = ", ".join(f"{who.rpartition('_')[2]} is {shown(id)}" for who, id in sorted(people.items()))
        other = apart(self.name, sorted(entry.participant for entry in theirs))
        notes[:] = [note for note in notes if note != other]
        notes.append(
            f"Moodle has {len(people)} participants called {shown(self.name)} in {self.week.name}: {who} "
            "(if two of them are one student, [ids] in course.toml says so)"
        )

    def unclear(self, theirs: Sequence[Entry]) -> list[str]:
        """A sentence if a receipt without a number may be one of several who come now."""
        new = sorted(one.participant for one in theirs if self._is_new(one))
        bare = [one for one in self.kept if self._is_bare(one)]
        if not bare or any(one.participant for one in bare) or not new or self.name in [one.student for one in theirs]:
            return []
        return [
            f"{shown(self.name)} was collected before numbers were kept, and may be {' or '.join(map(shown, new))}: if "
            f"so, `{shlex.join(['grade', 'withdraw', self.week.name, bare[0].student])}` takes the old one back"
        ]

    def named_since(self, theirs: Sequence[Entry], rules: Rules) -> list[str]:
        """Sentences on those whom [ids] calls by number, and who were collected under the bare name before."""
        told = []
        for entry in theirs:
            id = rules.id_of(entry.participant)
            here = {one.student for one in self.kept if _who(one) == entry.participant}
            if entry.student == self.name and id != entry.participant and here and id not in here:
                told.append(
                    f"{shown(self.name)} was collected before [ids] called {shown(entry.participant)} {shown(id)}, and "
                    f"keeps that name: `{shlex.join(['grade', 'withdraw', self.week.name, min(here)])}`, and collected "
                    f"again it is {shown(id)}"
                )
        return told

    def elsewhere(self, theirs: Sequence[Entry], weeks: dict[str, dict[str, set[str]]], rules: Rules) -> list[str]:
        """A sentence if somebody comes under a bare name that several have in another week: whose points of that week
        are theirs, no number tells."""
        new = [one for one in theirs if one.student == self.name and self._is_new(one)]
        if not new or self._by_ids(new[0], rules):
            return []
        for week, names in weeks.items():
            if len(several := sorted(names.get(self.name, ()))) > 1:
                return [
                    f"{shown(self.name)} may be any of {some(several)} of {week}, and Moodle's numbers change from "
                    f"week to week: unless it is {shown(self.name)}, write who it is into [ids], "
                    f'"{shown(new[0].participant)}" = "..."'
                ]
        return []

    def _by_ids(self, entry: Entry, rules: Rules) -> bool:
        """Whether [ids] names this participant, or leaves the bare name to another one."""
        id = rules.id_of(self.name)
        return rules.id_of(entry.participant) != entry.participant or (
            _name(id) == self.name and id != entry.participant
        )

    def _is_new(self, entry: Entry) -> bool:
        return not any(_who(one) == entry.participant for one in (*self.kept, *self.back))

    def _is_bare(self, receipt: Receipt) -> bool:
        return (receipt.called or receipt.student) == self.name


def _elsewhere(root: Path) -> dict[str, dict[str, set[str]]]:
    """Week -> name -> the ids of those who are called so, of the other weeks that are kept beside this one."""
    weeks: dict[str, dict[str, set[str]]] = {}
    for week in sorted(path.parent for path in root.parent.glob(f"*/{MARKER}") if path.parent != root):
        names = weeks.setdefault(week.name, {})
        for student in (unquoted(path.name) for path in week.iterdir()):
            for name in {student, _name(student)}:
                names.setdefault(name, set()).add(student)
    return weeks


def _who(receipt: Receipt) -> str:
    """A receipt's participant. Of those of before numbers were kept the name may be it."""
    return receipt.participant or receipt.called or receipt.student


def _name(participant: str) -> str:
    """The name in "Max Meier_500"; "" where there is no number."""
    name, _, number = participant.rpartition("_")
    return name if number.isdigit() else ""

"""`grade forget`: everything of one student goes, nothing of anyone else, and what only a person can do is named."""

import pytest

from grading.publish.forget import find, forget
from grading.publish.publishing import Wishes, publish
from grading.register.people import resolve
from grading.register.standing import standings
from labkit.errors import LabError
from tests.grading.minicourse import snapshot
from tests.grading.publish.aclass import LATE, WEEK, a_class, hand_in, hand_points, mark, zipped

ROSTER = "student,name,email\nu1,Anna Unique,anna@x.org\nu2,Ben,ben@x.org\nu3,Cleo,cleo@x.org\nu4,Dora,dora@x.org\n"


def whole(cls):
    """Every file's bytes by path, and the store's statements."""
    files = {name: data for name, data in snapshot(cls.folder).items() if not name.startswith("class.db")}
    return files, list(cls.db.iterdump())


def gone(cls, name="anna@x.org"):
    stored = find(cls, resolve(cls, name))
    return stored, list(forget(cls, stored))


def totals(cls):
    found = {one.person.email: (one.total, one.counted and one.counted.submission.id) for one in standings(cls, WEEK)}
    return {name: total for name, total in found.items() if name != "anna@x.org"}


@pytest.fixture
def cls(tmp_path):
    """Anna alone, twice; Ben and Anna as a group, last; Cleo alone; all published."""
    with a_class(tmp_path / "autumn", ROSTER, LATE) as opened:
        for name, days in (("anna@x.org", -2), ("anna@x.org", -1), ("cleo@x.org", -1)):
            number = hand_in(opened, name, mark("13.5 GB/s", notes=[f"a note on {name}"]), days_late=days)
            hand_points(opened, number, "13.7", 10, f"written to {name}")
        hand_points(opened, hand_in(opened, ["anna@x.org", "ben@x.org"], mark()), "13.7", 15)
        publish(opened, WEEK, Wishes())
        yield opened


def test_all_of_one_goes_and_nothing_of_the_others(cls, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("kept")
    link = cls.folder / "gradebook" / "autograded" / "1"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    before = whole(cls)
    stored = find(cls, resolve(cls, "anna@x.org"))
    assert stored.submissions == [1, 2] and stored.shared == [4]
    assert whole(cls) == before
    others = totals(cls)
    assert len(list(forget(cls, stored))) == len(stored.paths) + 1 and totals(cls) == others, "the group's stay Ben's"
    assert {path.name for path in (cls.folder / "submitted" / "week13").iterdir()} == {"3.zip", "4.zip"}
    pages = {path.name for path in (cls.folder / "published/week13/feedback").iterdir()}
    assert pages == {"ben@x.org", "cleo@x.org"}
    assert not link.is_symlink() and (tmp_path / "elsewhere" / "file").read_text() == "kept", "not what it points to"
    nothing, said = gone(cls, "dora@x.org")
    assert nothing.paths == [] and nothing.submissions == [] and len(said) == 1, "she handed in nothing"
    cls.db.close()
    data = b"".join(path.read_bytes() for path in cls.folder.glob("class.db*"))
    assert b"written to cleo@x.org" in data
    for text in (b"anna@x.org", b"Anna Unique", b"written to anna"):
        assert text not in data, "overwritten, and not only unlinked"


def test_what_names_them_beside_others_is_left_to_a_person(cls):
    (cls.folder / "course.toml").write_text(LATE + '[excused]\nweek13 = ["anna@x.org"]\n')
    (cls.folder / "download.zip").write_bytes(zipped({"AnnaUnique_101_7_ring.py": b"", "Ben_102_8_ring.py": b""}))
    (cls.folder / "other.zip").write_bytes(zipped({"Ben_102_8_ring.py": b""}))
    named = {sentence.split(" ")[0] for sentence in find(cls, resolve(cls, "anna@x.org")).others}
    tables = {"published/term.csv", "published/week13/all.csv", "published/week13/class.html"}
    assert named == {str(cls.folder / name) for name in tables | {"course.toml", "roster.csv", "download.zip"}}


@pytest.mark.parametrize("steps", range(6))
def test_killed_anywhere_the_same_command_removes_the_rest(cls, steps):
    """The files go first, so the rows still tell what is left; afterwards nobody of this name is there."""
    stored = find(cls, resolve(cls, "anna@x.org"))
    for _, _ in zip(range(steps), forget(cls, stored)):
        pass
    try:
        gone(cls)
    except LabError:
        assert steps > len(stored.paths)
    assert not list(cls.folder.glob("submitted/week13/[12].zip"))
    with pytest.raises(LabError, match="nobody"):
        resolve(cls, "anna@x.org")

"""nbgrader's course directory in the class's folder: nbgrader itself takes it for one, and its Autograde is off."""

import os
import shutil
import stat

import pytest

from grading.marking.course import CONFIG, is_current, make, open_course
from grading.marking.session import prepare
from labkit.checks.tasks import find_week, find_weeks
from labkit.errors import LabError
from tests import warm
from tests.grading.marking.samples import TASKS, handed, mark, rows, scores, shown, type_in
from tests.grading.publish.aclass import hand_in


@pytest.fixture
def one(cls, week):
    """Submission 1, with 1 of 4 points in 91.1, on the screen."""
    number = hand_in(cls, "anna", mark({"91.1": 1}), files=handed())
    prepare(cls, week)
    return number


def points(course):
    """assignment -> points of its cells."""
    with course.gradebook() as book:
        return {one.name: one.max_score for one in book.assignments}


def test_nbgrader_finds_the_assignments_and_their_points(course, api):
    assert {a["name"] for a in api.get_assignments()} == {"week91", "week92"}
    assert points(course) == {"week91": 12, "week92": 1}
    with course.gradebook() as book:
        there = book.find_notebook("lab", "week91")
        cells = {(c.name, c.max_score, c.cell_type) for c in there.grade_cells}
        assert cells == {("task-91-1", 4, "code"), ("task-91-3", 2, "code")}
        assert [(c.name, c.max_score) for c in there.task_cells] == [("task-91-2", 6)], "a stretch task has none"


def test_clicks_on_generate_and_autograde_change_nothing(cls, week, course, api, one):
    work = course.root / "submitted" / str(one) / "week91"
    for name, data in handed().items():
        (work / name).write_bytes(data)
    before, view = rows(cls.folder), shown(cls.folder, one).read_bytes()
    api.generate_assignment("week91")
    assert is_current(course, week), "there is nothing to generate: what students get comes from `grade release`"
    result = api.autograde("week91", str(one))
    assert not result["success"] and "grade run week91" in result["log"]
    assert rows(cls.folder) == before and shown(cls.folder, one).read_bytes() == view


def test_without_the_guard_autograde_would_destroy(cls, course, api, one):
    """Or the test above proves nothing."""
    shutil.copy(
        shown(cls.folder, one), course.root / "submitted" / str(one) / "week91"
    )  # as through nbgrader's exchange
    del api.config.Autograde["exporter_class"]
    api.autograde("week91", str(one))
    assert not shown(cls.folder, one).exists()


def test_again_it_takes_up_what_is_new_and_keeps_what_was_given(cls, course, source, one):
    type_in(course, one, "task-91-2", 5, "good")
    (source / "week91_demo" / "tasks.toml").write_text(TASKS.replace("points = 4", "points = 8"))
    config = course.root / CONFIG
    config.write_text(config.read_text() + "# mine\n")
    assert not is_current(course, find_week("week91", find_weeks(source)))
    make(course.root, find_weeks(source))
    assert points(course) == {"week91": 16, "week92": 1}
    assert scores(cls.folder, one)["task-91-2"] == (None, 5, False) and config.read_text().endswith("# mine\n")
    assert is_current(course, find_week("week91", find_weeks(source)))


def test_a_config_that_leaves_autograde_on_is_refused(cls, course, week):
    config = course.root / CONFIG
    config.write_text("".join(line for line in config.read_text().splitlines(True) if "Autograde." not in line))
    for attempt in (lambda: open_course(course.root), lambda: prepare(cls, week)):
        with pytest.raises(LabError, match="c.Autograde.exporter_class = 'grading.marking.guard.NoAutograde'"):
            attempt()


def test_it_can_be_moved_and_only_its_owner_can_read_it(template, course, tmp_path):
    os.rename(course.root, tmp_path / "moved")
    found = open_course(tmp_path / "moved")
    assert found.database == tmp_path / "moved" / "gradebook.db" and found.exchange == tmp_path / "moved" / "exchange"
    assert stat.S_IMODE(template[1].stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "where, why",
    [
        ("source", "outside"),
        ("source/inside", "outside"),
        (".", "outside"),
        ("other", "another course"),
        ("broken", "cannot be read"),
        ("file", "cannot be written"),
    ],
)
def test_a_folder_that_will_not_do(source, tmp_path, where, why):
    for name in ("other", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "gradebook.db").touch()
    (tmp_path / "broken" / CONFIG).write_text("c = ")
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match=why):
        make(tmp_path / where, find_weeks(source))
    assert not (source / CONFIG).exists() and not (tmp_path / CONFIG).exists()


@pytest.mark.thorough
def test_an_environment_that_is_not_activated_will_do(source, tmp_path):
    """nbgrader calls `alembic` by its bare name."""
    code = (
        f"import sys; sys.path.insert(0, {os.getcwd()!r}); from pathlib import Path; "
        "from grading.marking.course import make; from labkit.checks.tasks import find_weeks; "
        f"make(Path({str(tmp_path / 'new')!r}), find_weeks({str(source)!r}))"
    )
    done = warm.python("-c", code, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert open_course(tmp_path / "new").root == tmp_path / "new"


def test_an_exchange_is_taken_up_later_and_not_written_over(source, course, tmp_path):
    assert course.exchange == course.root / "exchange"
    (tmp_path / "exchange").write_text("in the way")
    _, said = make(course.root, find_weeks(source), exchange=tmp_path / "exchange")
    assert any("Not a directory" in one for one in said)
    (tmp_path / "exchange").unlink()
    make(course.root, find_weeks(source), exchange=tmp_path / "exchange")
    assert open_course(course.root).exchange == tmp_path / "exchange"
    with pytest.raises(LabError, match=r"c\.Exchange\.root = '.*/third'"):
        make(course.root, find_weeks(source), exchange=tmp_path / "third")


def test_an_exchange_that_students_share_takes_what_nbgrader_submits(source, course, tmp_path):
    from nbgrader.auth import Authenticator
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.exchange.default import ExchangeSubmit
    from traitlets.config import Config

    root, package = tmp_path / "exchange", find_weeks(source)[0].package
    before = os.umask(0o077)
    try:
        _, said = make(course.root, find_weeks(source), exchange=root)
    finally:
        os.umask(before)
    assert any(f"nbgrader submit {package} --course {course.id} --Exchange.root={root}" in one for one in said)
    inbound = root / course.id / "inbound"
    assert [path.stat().st_mode & 0o777 for path in (root / course.id, inbound)] == [0o755, 0o733]
    (tmp_path / "home" / package).mkdir(parents=True)
    (tmp_path / "home" / package / "lab.ipynb").write_text("{}")
    config = Config()
    config.CourseDirectory.update(course_id=course.id, assignment_id=package, student_id="anna")
    config.Exchange.update(root=str(root), assignment_dir=str(tmp_path / "home"), cache=str(tmp_path / "cache"))
    ExchangeSubmit(
        coursedir=CourseDirectory(config=config), authenticator=Authenticator(config=config), config=config
    ).start()
    assert [path.name.split("+")[:2] for path in inbound.iterdir()] == [["anna", package]]
    inbound.chmod(0o770)
    make(course.root, find_weeks(source))
    assert inbound.stat().st_mode & 0o777 == 0o770, "what the instructor chose stays"

"""nbgrader's course directory in the class's folder: nbgrader itself takes it for one, and its Autograde is off."""

import contextlib
import json
import os
import shutil
import sqlite3
import stat

import pytest

from grading.marking import jupyter as module
from grading.marking.course import CONFIG, is_current, make, open_course
from grading.marking.session import prepare
from labkit.checks.tasks import find_week, find_weeks
from labkit.errors import LabError
from tests import warm
from tests.grading.marking.samples import RUBRIC, TASKS, handed, mark, rows, scores, shown, type_in
from tests.grading.publish.aclass import hand_in

THIRD = next(line for line in TASKS.splitlines(True) if '"91.3"' in line)


@pytest.fixture
def api(course):
    """nbgrader's own application interface, as formgrader uses it."""
    from nbgrader.apps.api import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config.loader import PyFileConfigLoader

    config = PyFileConfigLoader(CONFIG, path=str(course.root)).load_config()
    config.Exchange.root = str(course.root / "exchange")
    return NbGraderAPI(coursedir=CourseDirectory(config=config), config=config)


@pytest.fixture
def one(cls, week):
    """Submission 1, with 1 of 4 points in 91.1, on the screen."""
    number = hand_in(cls, "anna", mark({"91.1": 1}), files=handed())
    prepare(cls, week)
    return number


def points(folder):
    """assignment -> points of its cells."""
    with contextlib.closing(sqlite3.connect(folder / "gradebook.db")) as base:
        query = "select a.name, sum(max_score) from (select id, max_score from grade_cells union all select id, "
        query += "max_score from task_cells) c join base_cell b on b.id = c.id join notebook n on n.id = b.notebook_id "
        return dict(base.execute(query + "join assignment a on a.id = n.assignment_id group by a.name"))


def test_nbgrader_finds_the_assignments_and_their_points(course, api):
    assert {a["name"] for a in api.get_assignments()} == {"week91", "week92"}
    assert points(course.root) == {"week91": 12, "week92": 1}
    with course.gradebook() as book:
        there = book.find_notebook("lab", "week91")
        cells = {(c.name, c.max_score, c.cell_type) for c in there.grade_cells}
        assert cells == {("task-91-1", 4, "code"), ("task-91-3", 2, "code")}
        assert [(c.name, c.max_score) for c in there.task_cells] == [("task-91-2", 6)], "a stretch task has none"


def test_the_source_notebook_is_the_released_one_with_grade_cells(course):
    notebook = json.loads((course.root / "source" / "week91" / "lab.ipynb").read_text())
    graded = [(c["id"], c["metadata"]["nbgrader"]["points"]) for c in notebook["cells"] if "nbgrader" in c["metadata"]]
    assert graded == [("task-91-1", 4), ("task-91-3", 2), ("task-91-2", 6)]
    order = [c["id"] for c in notebook["cells"]]
    assert order.index("task-91-2") == order.index("task-91-2-why") + 1, "points are given where the answer was read"
    assert next(c for c in notebook["cells"] if c["id"] == "task-91-2")["source"] == RUBRIC
    for path in (course.root / "source").rglob("*"):
        assert path.is_dir() or "secret" not in path.read_text(), "students get this"


def test_nbgraders_own_generate_agrees_and_harms_nothing(cls, course, api, one):
    type_in(course, one, "task-91-2", 5, "good")
    before = rows(cls.folder)
    result = api.generate_assignment("week91")
    assert result["success"], result.get("log")
    assert rows(cls.folder) == before and (course.root / "release" / "week91" / "lab.ipynb").exists()


def test_autograde_refuses_and_changes_nothing(cls, course, api, one):
    work = course.root / "submitted" / str(one) / "week91"
    for name, data in handed().items():
        (work / name).write_bytes(data)
    before, view = rows(cls.folder), shown(cls.folder, one).read_bytes()
    result = api.autograde("week91", str(one))
    assert not result["success"] and "grade run week91" in result["log"]
    assert rows(cls.folder) == before and shown(cls.folder, one).read_bytes() == view


def test_without_the_guard_autograde_would_overwrite(cls, course, api, one):
    """Or the test above proves nothing."""
    work = course.root / "submitted" / str(one) / "week91"
    shutil.copy(course.root / "source" / "week91" / "lab.ipynb", work)  # as fetched through nbgrader's exchange
    del api.config.Autograde["exporter_class"]
    api.autograde("week91", str(one))  # runs the notebook, in which `check` is no name
    assert scores(cls.folder, one)["task-91-1"][0] == 0


def test_autograde_fails_as_well_where_the_guard_cannot_be_imported(cls, course, api, one):
    shutil.copytree(course.root / "autograded" / str(one), course.root / "submitted" / str(one), dirs_exist_ok=True)
    before = rows(cls.folder)
    api.config.Autograde.exporter_class = "grading.marking.guard.Missing"
    with pytest.raises(Exception, match="Missing"):
        api.autograde("week91", str(one))
    assert rows(cls.folder) == before


def test_again_it_takes_up_what_is_new_and_keeps_what_was_given(cls, course, source, one):
    type_in(course, one, "task-91-2", 5, "good")
    (source / "week91_demo" / "tasks.toml").write_text(TASKS.replace("points = 4", "points = 8"))
    config = course.root / CONFIG
    config.write_text(config.read_text() + "# mine\n")
    assert not is_current(course, find_week("week91", find_weeks(source)))
    make(course.root, find_weeks(source))
    assert points(course.root) == {"week91": 16, "week92": 1}
    assert scores(cls.folder, one)["task-91-2"] == (None, 5, False) and config.read_text().endswith("# mine\n")
    assert is_current(course, find_week("week91", find_weeks(source)))


def test_a_task_that_left_goes_unless_somebody_has_points_there(cls, course, source, week):
    tasks = source / "week91_demo" / "tasks.toml"
    for _ in range(2):
        tasks.write_text(TASKS.replace(THIRD, ""))
        make(course.root, find_weeks(source))
        assert points(course.root)["week91"] == 10
        tasks.write_text(TASKS)
        make(course.root, find_weeks(source))
    number = hand_in(cls, "anna", mark(), files=handed())
    prepare(cls, week)
    tasks.write_text(TASKS.replace(THIRD, ""))
    _, said = make(course.root, find_weeks(source))
    assert any("task-91-3" in sentence for sentence in said) and scores(cls.folder, number)["task-91-3"][0] == 2


def test_one_that_was_killed_while_the_source_was_put_goes_on(course, source):
    (course.root / "source" / "week91").rename(course.root / "source" / ".week91.old")
    shutil.copytree(course.root / "source" / "week92", course.root / "source" / ".week92.old")
    (course.root / "source" / ".week91.new").mkdir()
    (course.root / "source" / ".week91.new" / "half.py").touch()
    make(course.root, find_weeks(source))
    assert sorted(p.name for p in (course.root / "source").iterdir()) == ["week91", "week92"]
    assert not (course.root / "source" / "week91" / "half.py").exists()


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


def test_jupyter_extensions_that_are_off_are_turned_on(monkeypatch, tmp_path):
    from jupyter_server.extension import serverextension

    pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install '.[grading]'")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    assert module._off() == []
    (tmp_path / "jupyter_server_config.json").write_text(
        json.dumps({"ServerApp": {"jpserver_extensions": {module.EXTENSIONS[0]: False}}})
    )
    assert module._off() == [module.EXTENSIONS[0]]
    state = {name: name != module.EXTENSIONS[0] for name in module.EXTENSIONS}
    monkeypatch.setattr(module, "_off", lambda: [name for name, on in state.items() if not on])
    monkeypatch.setattr(
        serverextension, "toggle_server_extension_python", lambda name, enabled, user: state.update({name: enabled})
    )
    assert len(module.extensions()) == 1 and all(state.values())

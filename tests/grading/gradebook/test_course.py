"""`grade course init`: a course directory that nbgrader itself takes for one, and whose Autograde is off."""

from __future__ import annotations

import json
import os
import shutil
import stat

import pytest

from grading.gradebook.course import CONFIG, Course, open_course
from grading.gradebook.init import init
from grading.gradebook.load import load
from labkit.checks.tasks import find_week, find_weeks
from labkit.errors import LabError
from tests import warm
from tests.grading.gradebook.samples import RUBRIC, TASKS, by_hand, handed, mark, put_marks, rows, scores


@pytest.fixture
def api(course):
    """nbgrader's own application interface, as formgrader uses it."""
    from nbgrader.apps.api import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config.loader import PyFileConfigLoader

    config = PyFileConfigLoader(CONFIG, path=str(course.root)).load_config()
    config.Exchange.root = str(course.root / "exchange")
    return NbGraderAPI(coursedir=CourseDirectory(config=config), config=config)


def test_nbgrader_finds_the_assignments_and_their_points(course, api):
    found = {a["name"]: (a["max_score"], a["max_code_score"], a["max_task_score"]) for a in _assignments(course)}
    assert found == {"week91": (12, 6, 6), "week92": (1, 1, 0)}
    assert {a["name"] for a in api.get_assignments()} == {"week91", "week92"}


def _assignments(course: Course):
    with course.gradebook() as book:
        return [
            {
                "name": a.name,
                "max_score": a.max_score,
                "max_code_score": a.max_code_score,
                "max_task_score": sum(n.max_task_score for n in a.notebooks),
            }
            for a in book.assignments
        ]


def test_cells_are_named_after_tasks_and_a_stretch_task_has_none(course):
    with course.gradebook() as book:
        there = book.find_notebook("lab", "week91")
        assert {(c.name, c.max_score, c.cell_type) for c in there.grade_cells} == {
            ("task-91-1", 4, "code"),
            ("task-91-3", 2, "code"),
        }
        assert {(c.name, c.max_score) for c in there.task_cells} == {("task-91-2", 6)}


def test_the_source_notebook_is_the_released_one_with_grade_cells(course):
    notebook = json.loads((course.root / "source" / "week91" / "lab.ipynb").read_text())
    graded = [(c["id"], c["metadata"]["nbgrader"]["points"]) for c in notebook["cells"] if "nbgrader" in c["metadata"]]
    assert graded == [("task-91-1", 4), ("task-91-3", 2), ("task-91-2", 6)]
    order = [c["id"] for c in notebook["cells"]]
    assert order.index("task-91-2") == order.index("task-91-2-why") + 1, "points are given where the answer was read"
    assert next(c for c in notebook["cells"] if c["id"] == "task-91-2")["source"] == RUBRIC
    for path in (course.root / "source").rglob("*"):
        assert path.is_dir() or "secret" not in path.read_text(), "students get this"


def test_nbgraders_own_generate_agrees_and_harms_nothing(course, api, week, marks):
    load(course, week, put_marks(marks, mark("anna", {"91.1": 1})))
    by_hand(course, "anna", "task-91-2", points=5, comment="good")
    before = rows(course)
    result = api.generate_assignment("week91")
    assert result["success"], result.get("log")
    assert rows(course) == before
    assert (course.root / "release" / "week91" / "lab.ipynb").exists()


def test_autograde_refuses_and_changes_nothing(course, api, week, marks):
    load(course, week, put_marks(marks, mark("anna", {"91.1": 1})), files=lambda mark: handed())
    work = course.root / "submitted" / "anna" / "week91"
    work.mkdir(parents=True, exist_ok=True)
    for name, data in handed().items():
        (work / name).write_bytes(data)
    before, shown = rows(course), (course.root / "autograded" / "anna" / "week91" / "lab.ipynb").read_bytes()
    result = api.autograde("week91", "anna")
    assert not result["success"] and "grade run week91" in result["log"]
    assert rows(course) == before
    assert (course.root / "autograded" / "anna" / "week91" / "lab.ipynb").read_bytes() == shown
    assert sorted(p.name for p in (course.root / "autograded" / "anna" / "week91").iterdir()) == ["lab.ipynb"]


def test_without_the_guard_autograde_would_overwrite(course, api, week, marks):
    """Or the test above proves nothing."""
    load(course, week, put_marks(marks, mark("anna", {"91.1": 1})))
    work = course.root / "submitted" / "anna" / "week91"
    work.mkdir(parents=True, exist_ok=True)
    shutil.copy(course.root / "source" / "week91" / "lab.ipynb", work)  # as fetched through nbgrader's exchange
    del api.config.Autograde["exporter_class"]
    api.autograde("week91", "anna")  # runs the notebook, in which `check` is no name
    assert scores(course, "anna")["task-91-1"][0] == 0


def test_autograde_fails_as_well_where_the_guard_cannot_be_imported(course, api, week, marks):
    load(course, week, put_marks(marks, mark("anna", {"91.1": 1})), files=lambda mark: handed())
    shutil.copytree(course.root / "autograded" / "anna", course.root / "submitted" / "anna", dirs_exist_ok=True)
    before = rows(course)
    api.config.Autograde.exporter_class = "grading.gradebook.guard.Missing"
    with pytest.raises(Exception, match="Missing"):
        api.autograde("week91", "anna")
    assert rows(course) == before


def test_nbgrader_makes_feedback_of_the_view(course, api, week, marks):
    load(course, week, put_marks(marks, mark("anna", {"91.1": 1})), files=lambda mark: handed())
    result = api.generate_feedback("week91", "anna")
    assert result["success"], result.get("log")
    assert "91.1 gives 4, expected 6" in (course.root / "feedback" / "anna" / "week91" / "lab.html").read_text()


def test_a_second_init_takes_up_what_is_new_and_keeps_what_was_given(course, source, marks):
    load(course, find_week("week91", find_weeks(source)), put_marks(marks, mark("anna")))
    by_hand(course, "anna", "task-91-2", points=5, comment="good")
    tasks = source / "week91_demo" / "tasks.toml"
    tasks.write_text(TASKS.replace("points = 4", "points = 8"))
    config = course.root / CONFIG
    config.write_text(config.read_text() + "# mine\n")
    init(course.root, source=source)
    assert {a["name"]: a["max_score"] for a in _assignments(course)} == {"week91": 16, "week92": 1}
    assert scores(course, "anna")["task-91-2"] == (None, 5, False) and ("anna", "task-91-2", "good") in rows(course)
    assert config.read_text().endswith("# mine\n")


def test_a_task_that_left_goes_unless_somebody_has_points_there(course, source, marks):
    tasks = source / "week91_demo" / "tasks.toml"
    third = '[[task]]\nid = "91.3"\ntitle = "thrice"\nkind = "auto"\npoints = 2\nfunctions = ["parts.triple"]\n'
    assert third in TASKS
    tasks.write_text(TASKS.replace(third, ""))
    init(course.root, source=source)
    assert {a["name"]: a["max_score"] for a in _assignments(course)}["week91"] == 10
    tasks.write_text(TASKS)
    init(course.root, source=source)
    load(course, find_week("week91", find_weeks(source)), put_marks(marks, mark("anna")))
    tasks.write_text(TASKS.replace(third, ""))
    said = init(course.root, source=source).said
    assert any("task-91-3 is no task of the course any more; it stays" in s for s in said)
    assert scores(course, "anna")["task-91-3"][0] == 2


def test_an_init_that_was_killed_while_the_source_was_put_goes_on(course, source):
    (course.root / "source" / "week91").rename(course.root / "source" / ".week91.old")
    shutil.copytree(course.root / "source" / "week92", course.root / "source" / ".week92.old")
    (course.root / "source" / ".week91.new").mkdir()
    (course.root / "source" / ".week91.new" / "half.py").touch()
    init(course.root, source=source)
    assert sorted(p.name for p in (course.root / "source").iterdir()) == ["week91", "week92"]
    assert not (course.root / "source" / "week91" / "half.py").exists()


def test_a_config_that_leaves_autograde_on_is_refused(course, source):
    config = course.root / CONFIG
    config.write_text("".join(line for line in config.read_text().splitlines(True) if "Autograde." not in line))
    for attempt in (lambda: open_course(course.root), lambda: init(course.root, source=source)):
        with pytest.raises(LabError, match="c.Autograde.exporter_class = 'grading.gradebook.guard.NoAutograde'"):
            attempt()


def test_a_course_directory_is_found_from_inside_it_and_can_be_moved(course, tmp_path):
    os.rename(course.root, tmp_path / "moved")
    found = open_course(tmp_path / "moved" / "source" / "week91")
    assert found.root == tmp_path / "moved" and found.db_url.endswith("/moved/gradebook.db")
    with pytest.raises(LabError, match="grade course init gradebook"):
        open_course(tmp_path)


def test_only_its_owner_can_read_it(template):
    assert stat.S_IMODE(template[1].stat().st_mode) == 0o700, "it holds names and marks"


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
        init(tmp_path / where, source=source)
    assert not (source / CONFIG).exists() and not (tmp_path / CONFIG).exists()


@pytest.mark.thorough
def test_an_environment_that_is_not_activated_will_do(source, tmp_path):
    """nbgrader calls `alembic` by its bare name."""
    code = (
        f"import sys; sys.path.insert(0, {os.getcwd()!r}); from grading.gradebook.init import init; "
        f"init({str(tmp_path / 'new')!r}, source={str(source)!r})"
    )
    done = warm.python("-c", code, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert open_course(tmp_path / "new").root == tmp_path / "new"


@pytest.mark.thorough
def test_the_name_and_the_exchange_can_be_chosen(source, tmp_path):
    course = init(tmp_path / "new", source=source, name="m4", exchange=tmp_path / "exchange").course
    from traitlets.config.loader import PyFileConfigLoader

    config = PyFileConfigLoader(CONFIG, path=str(course.root)).load_config()
    assert course.id == "m4" and config.Exchange.root == str(tmp_path / "exchange")
    # A course that was made without one takes it up later, and what a person wrote there is not written over.
    later = tmp_path / "later"
    init(later, source=source)
    assert open_course(later).exchange == str(later / "exchange")
    for _ in range(2):
        init(later, source=source, exchange=tmp_path / "exchange")
    assert open_course(later).exchange == str(tmp_path / "exchange")
    with pytest.raises(LabError, match=r"names another exchange: write c\.Exchange\.root = '.*/third' there"):
        init(later, source=source, exchange=tmp_path / "third")


@pytest.mark.thorough
def test_an_exchange_that_students_share_takes_what_nbgrader_submits(source, tmp_path):
    from nbgrader.auth import Authenticator
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.exchange.default import ExchangeSubmit
    from traitlets.config import Config

    root, package = tmp_path / "exchange", find_weeks(source)[0].package
    before = os.umask(0o077)
    try:
        said = init(tmp_path / "new", source=source, name="m4", exchange=root).said
    finally:
        os.umask(before)
    assert f"nbgrader submit {package} --course m4 --Exchange.root={root}" in said[-1]
    inbound = root / "m4" / "inbound"
    assert [path.stat().st_mode & 0o777 for path in (root / "m4", inbound)] == [0o755, 0o733]
    (tmp_path / "home" / package).mkdir(parents=True)
    (tmp_path / "home" / package / "lab.ipynb").write_text("{}")
    config = Config()
    config.CourseDirectory.update(course_id="m4", assignment_id=package, student_id="anna")
    config.Exchange.update(root=str(root), assignment_dir=str(tmp_path / "home"), cache=str(tmp_path / "cache"))
    ExchangeSubmit(
        coursedir=CourseDirectory(config=config), authenticator=Authenticator(config=config), config=config
    ).start()
    assert [path.name.split("+")[:2] for path in inbound.iterdir()] == [["anna", package]]
    inbound.chmod(0o770)
    init(tmp_path / "new", source=source)
    assert inbound.stat().st_mode & 0o777 == 0o770, "what the instructor chose stays"


@pytest.mark.thorough
def test_an_exchange_that_cannot_be_made_ready_is_told(source, tmp_path):
    (tmp_path / "exchange").write_text("in the way")
    said = init(tmp_path / "new", source=source, exchange=tmp_path / "exchange").said
    assert "cannot be made ready for hand-ins (Not a directory): nbgrader submit fails until it is" in said[-1]


def test_jupyter_extensions_that_are_off_are_turned_on(monkeypatch, tmp_path):
    from jupyter_server.extension import serverextension

    from grading.gradebook import init as module

    state = {name: name != module.EXTENSIONS[0] for name in module.EXTENSIONS}
    monkeypatch.setattr(module, "_menu", lambda: True)
    monkeypatch.setattr(module, "_off", lambda: [name for name, on in state.items() if not on])
    monkeypatch.setattr(
        serverextension, "toggle_server_extension_python", lambda name, enabled, user: state.update({name: enabled})
    )
    assert module.extensions() == ["the Jupyter extension nbgrader.server_extensions.formgrader was off and is on"]
    assert all(state.values())


def test_which_jupyter_extensions_are_off(monkeypatch, tmp_path):
    pytest.importorskip("nbgrader", reason="its extensions are looked for")
    from grading.gradebook import init as module

    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    assert module._off() == []
    (tmp_path / "jupyter_server_config.json").write_text(
        json.dumps({"ServerApp": {"jpserver_extensions": {module.EXTENSIONS[0]: False}}})
    )
    assert module._off() == [module.EXTENSIONS[0]]


def _grade(*words, cwd):
    """The commands as one types them, in a process of their own."""
    code = (
        "import typer; from grading.gradebook.commands import add_commands; import sys; sys.path.insert(0, '.')\n"
        "app = typer.Typer(); add_commands(app); app()"
    )
    return warm.python("-c", code, *words, cwd=cwd, env={**os.environ, "PYTHONPATH": os.getcwd()})


@pytest.mark.thorough
def test_the_commands(source, tmp_path):
    done = _grade("course", "init", tmp_path / "new", "--name", "m4", cwd=source)
    assert done.returncode == 0, done.stderr
    assert "week91 is registered: 3 grade cells, 12 points" in done.stdout
    folder = tmp_path / "new" / "submitted" / "anna" / "week91"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in handed().items():
        (folder / name).write_bytes(data)
    put_marks(tmp_path / "new" / "marks", mark("anna"))
    words = (
        "load",
        "week91",
        "--gradebook",
        tmp_path / "new",
        "--marks",
        tmp_path / "new" / "marks",
        "--submissions",
        tmp_path / "new" / "submitted",
    )
    done = _grade(*words, cwd=source)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 student: 1 new, 0 changed, 0 as they were; 0 to look at\n" and done.stderr == ""
    assert "Because." in (tmp_path / "new" / "autograded" / "anna" / "week91" / "lab.ipynb").read_text()
    put_marks(tmp_path / "new" / "marks", mark("anna", faults=("91.1",)))
    done = _grade(*words, cwd=source)
    assert done.returncode == 1 and "anna: not loaded" in done.stdout

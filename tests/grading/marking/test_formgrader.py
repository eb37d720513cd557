"""Formgrader in a real browser: what an instructor sees, clicks and types, on the real week 13.

Every test has a student of its own, so that their order does not matter."""

import contextlib
import json
from pathlib import Path

import pytest

from grading.mark import Mark
from labkit.checks.verdict import PASSED, WRONG
from tests.browser import START, Page, browser, chromium, jupyter
from tests.grading.marking.conftest import NBGRADER
from tests.grading.marking.samples import case, code, markdown, rows, scores, task
from tests.grading.publish.aclass import a_class, hand_in

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not NBGRADER, reason="nbgrader is not installed: pip install '.[grading]'"),
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed: apt install chromium"),
]
ROOT = Path(__file__).resolve().parents[3]
WEEK = ROOT / "week13_allreduce"
DIAGNOSIS = "rank 2: chunk 1 differs\n  expected  [6, 8]\n  got       [2, 4]\n  cause: do not divide by N"
ATTACK = "<script>alert('{0}'); window.ran = '{0}'</script><img src=x onerror=\"alert('{0}')\">"


def mark_of(week, **more) -> Mark:
    """72 of 80 automatic points: 13.2 has one wrong case."""
    tasks = []
    for one in (each for each in week.tasks if each.kind != "stretch"):
        points, cases = one.points, [case(PASSED, one.points, one.points, behaviour=one.title)]
        if one.kind == "written":
            points, cases = None, []
        elif one.id == "13.2":
            cases = [case(PASSED, 12, 12, behaviour="the sum: N=1"), case(WRONG, 0, 8, DIAGNOSIS, "the sum: N=4, L=3")]
            points = 12
        tasks.append({**task(one.id, one.kind, points, one.points, cases), "title": one.title})
    return Mark(0, "week13", points=72, possible=80, content="c", **{"tasks": tasks, **more})


def handed(change=lambda cells: None) -> dict[str, bytes]:
    """The reference solution as a submission, its notebook's cells changed in place."""
    notebook = json.loads((WEEK / "lab.ipynb").read_text())
    change(notebook["cells"])
    files = {path.name: path.read_bytes() for path in WEEK.glob("*.py")}
    return {**files, "lab.ipynb": json.dumps(notebook).encode()}


def attack(cells: list[dict]) -> None:
    """Everything that a notebook can carry into a page."""
    html = ATTACK.format("an output")
    kinds = {
        "text/html": html, "application/javascript": "alert('javascript'); window.ran = 'javascript'",
        "image/svg+xml": f"<svg onload=\"alert('svg')\">{html}</svg>", "text/markdown": html, "text/latex": html,
    }  # fmt: skip
    outputs: list[dict] = [{"output_type": "display_data", "metadata": {}, "data": {k: t}} for k, t in kinds.items()]
    picture = {
        "metadata": {"image/png": {"width": "1 onerror=alert(2)"}},
        "data": {"image/png": "x\" onerror=\"alert('png')"},
    }
    outputs += [
        {"output_type": "display_data", **picture},
        {"output_type": "stream", "name": "stdout", "text": f"\x1b[31m{ATTACK.format('a stream')}"},
        {"output_type": "error", "ename": "<b>", "evalue": html, "traceback": [html]},
    ]
    forged = {"schema_version": 3, "grade_id": "task-13-2", "grade": True, "solution": False, "locked": True}
    links = (
        "[click](javascript:alert('link')) ![x](javascript:alert('image')) [r]\n\n[r]: javascript:alert('reference)\n\n"
        "<javascript:alert(1)>\n\n<details open ontoggle=alert('toggle')>\n\n```mermaid\ngraph TD\n```\n\n"
        "$\\href{javascript:alert(3)}{x}$"
    )
    cells[:0] = [
        code("x1", f"# {ATTACK.format('code')}", outputs, tags=['"><script>alert("a tag")</script>']),
        markdown("x2", ATTACK.format("markdown"), nbgrader={**forged, "points": 1000, "task": False}),
        {**markdown("x3", links), "attachments": {"a": {"text/html": html}}},
        {"cell_type": "raw", "id": "x4", "metadata": {"raw_mimetype": "text/html"}, "source": ATTACK.format("raw")},
        {"cell_type": f"x{html}", "source": html, "metadata": {}},
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(the class's folder, its course directory, address of Jupyter, function that opens a logged-in tab, open tabs,
    {student: submission})."""
    from grading.marking.session import prepare
    from labkit.checks.tasks import find_week, find_weeks

    folder, weeks = tmp_path_factory.mktemp("formgrader"), find_weeks(ROOT)
    week = find_week("week13", weeks)
    files = {"anna": handed(), **{name: handed(attack) for name in ("mallory", "raw")}}
    marks = {name: mark_of(week) for name in files}
    evil = [case(WRONG, 0, 1, ATTACK.format("a diagnosis"), ATTACK.format("a title"))]
    marks["mia"] = mark_of(
        week,
        notes=[f"there is no collectives.py {ATTACK.format('a note')}"],
        tasks=[{**entry, "cases": evil} for entry in mark_of(week).tasks],
    )
    with a_class(folder / "class", list(marks), "", [week]) as cls:
        numbers = {name: hand_in(cls, name, made, files=files.get(name)) for name, made in marks.items()}
        course = prepare(cls, week).course
    tabs: list[Page] = []
    with jupyter(course.root, folder / "jupyter", "secret") as address, browser(folder / "browser") as tab:
        tab().open(f"{address}/api/status?token=secret")  # formgrader's own cookies are for one path; Jupyter's are not

        def page(path: str):
            one = tab()
            tabs.append(one)
            one.open(f"{address}{path}")
            return one

        yield folder / "class", course, address, page, tabs, numbers


@pytest.fixture(autouse=True)
def closed(world):
    """No test leaves a tab behind: JupyterLab goes on asking the server, and a browser asks few things at once."""
    yield
    while world[4]:
        world[4].pop().close()


def submission(world, student: str) -> str:
    with world[1].gradebook() as book:
        return f"/formgrader/submissions/{book.find_submission('week13', str(world[5][student])).notebooks[0].id}/"


def fetched(world, path: str, loaded: str):
    """(a page, with what its scripts fetch; the value of `loaded`, which says that it has come).

    Formgrader's pages ask once. A request that is lost leaves them waiting for ever: a person reloads, so do we."""
    page = world[3](path)
    with contextlib.suppress(TimeoutError):
        return page, page.wait(loaded, seconds=START / 2)
    page = world[3](path)
    return page, page.wait(loaded)


def opened(world, student: str):
    """A student's page, with the scores that its scripts fetch."""
    loaded = "formgrader.grades && formgrader.grades.loaded && formgrader.comments && formgrader.comments.loaded"
    return fetched(world, submission(world, student), loaded)[0]


MANAGE = "/formgrader/manage_submissions/week13"


def total(world, student: str) -> str:
    """What the list of submissions says of a student's points."""
    row = (
        "[...document.querySelectorAll('#main-table tr')].find(r => r.querySelector('.student-id') && "
        f"r.querySelector('.student-id').innerText == '{world[5][student]}')"
    )
    return fetched(world, MANAGE, f"{row} && {row}.querySelector('.score').innerText")[1]


def test_the_written_task_is_graded_by_hand_by_its_rubric_and_the_total_is_right(world):
    assert total(world, "anna") == "72 / 100"
    page = opened(world, "anna")
    rubric = page.js("document.getElementById('task-13-7').closest('.cell').innerText")
    for line in ("predictions 1 to 7", "a. three clocks", "b. topology document"):
        assert line in rubric, "the instructor reads what counts beside the field"
    assert page.js("document.getElementById('task-13-7').classList.contains('needs_manual_grade')")
    page.type("#task-13-7", "17")
    page.wait("formgrader.grades.find(g => g.get('name') == 'task-13-7').get('needs_manual_grade') === false")
    page.type("#task-13-7-comment", "The second clock needs your numbers.")
    page.wait("!!formgrader.comments.find(c => c.get('name') == 'task-13-7').get('manual_comment')")
    assert total(world, "anna") == "89 / 100"
    assert scores(world[0], world[5]["anna"], "week13")["task-13-7"] == (None, 17, False)
    assert any(row[2] == "task-13-7" and row[-1] == "The second clock needs your numbers." for row in rows(world[0]))


@pytest.mark.parametrize("student", ["mallory", "mia"])
def test_nothing_of_a_student_runs_on_the_instructors_page(world, student):
    page = opened(world, student)
    assert page.dialogs == [] and page.js("window.ran === undefined")
    active = ", ".join(
        f"#notebook {tag}" for tag in ["script", "svg", "iframe", "object", "embed", "form", "base", ".mermaid"]
    )
    handlers = "a.name.startsWith('on') || /^\\s*javascript:/i.test(a.value)"
    attributes = "[...document.querySelectorAll('#notebook *')].flatMap(e => [...e.attributes])"
    for acting in (f"{attributes}.filter(a => {handlers})", f"document.querySelectorAll('{active}')"):
        assert page.js(f"{acting}.length") == 0
    assert page.js("document.querySelectorAll('input.score').length") == 7, "forged cells are no grade cells"
    assert page.js("document.getElementById('task-13-2').closest('.nbgrader_cell').innerText").count("/ 20.0") == 1
    assert "alert" in page.text(), "it is shown, as text"


def test_the_same_notebook_as_it_was_handed_in_does_run(world):
    """Or the test above proves nothing."""
    (world[1].root / "autograded" / str(world[5]["raw"]) / "week13" / "lab.ipynb").write_bytes(
        handed(lambda cells: (attack(cells), cells.pop(4), cells.pop(1)))["lab.ipynb"]
    )
    page = world[3](submission(world, "raw"))
    page.wait("window.ran !== undefined")
    assert page.dialogs

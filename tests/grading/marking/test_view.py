"""The notebook that formgrader shows: whatever was handed in, each task has its cell, and nothing in it can act."""

import base64
import json

import pytest

from grading.answers import _remarks, documents
from grading.mark import UNSANDBOXED
from grading.marking import view
from grading.marking.cells import read_notebook, rubric
from labkit.checks.tasks import load_week
from labkit.errors import LabError
from tests.grading.marking.samples import RUBRIC, case, code, handed, make, mark, markdown, notebook

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
CELLS = ["task-91-1", "task-91-3", "task-91-2"]


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    return load_week(make(tmp_path_factory.mktemp("view") / "source") / "week91_demo")


@pytest.fixture
def build(week):
    nbformat, course = pytest.importorskip("nbformat"), read_notebook(week.notebook)

    def build(files, one=None, remark=""):
        shown = view.build(week, course, 17, one or mark(), files, remark)
        nbformat.validate(nbformat.from_dict(json.loads(json.dumps(shown))))
        return shown

    return build


def graded(shown) -> list[str]:
    return [c["metadata"]["nbgrader"]["grade_id"] for c in shown["cells"] if "nbgrader" in c["metadata"]]


def cell(shown, id: str) -> dict:
    return next(c for c in shown["cells"] if c["id"] == id)


def everything(shown) -> str:
    return json.dumps(shown, ensure_ascii=False)


def with_cells(*cells) -> dict[str, bytes]:
    return {"lab.ipynb": json.dumps({"cells": list(cells)}).encode()}


def change(what) -> dict[str, bytes]:
    """A submission whose notebook was changed in place."""
    book = notebook("Because.", "3")
    what(book["cells"])
    return {**handed(), "lab.ipynb": json.dumps(book).encode()}


def test_grade_cells_stand_where_the_checks_stood_and_behind_the_answers(build):
    shown = build(handed())
    assert graded(shown) == CELLS
    sources = [c["source"] for c in shown["cells"]]
    at = sources.index("Because.")
    assert shown["cells"][at + 1]["source"] == "# Task 91.2: what was handed in"
    assert shown["cells"][at + 2]["source"] == RUBRIC and sources[-1] == "The end."
    assert shown["cells"][at + 2]["metadata"]["nbgrader"] == {
        "schema_version": 3, "grade_id": "task-91-2", "points": 6, "grade": False, "locked": True, "solution": False,
        "task": True,
    }  # fmt: skip
    assert cell(shown, "task-91-1")["metadata"]["nbgrader"]["points"] == 4


@pytest.mark.parametrize("before", ["", "def broken(:\n", "\0\n", "(" * 5000 + "\n", "x = " + "-" * 300_000 + "1\n"])
def test_modules_that_no_parser_takes_are_shown_all_the_same(build, before):
    parts = before + '@cache\ndef double(x):\n    """Text\n\n    more."""\n    return x + x\n\n\ny = 3\n'
    source = cell(build(handed(parts=parts)), "task-91-1")["source"]
    assert source.endswith('@cache\ndef double(x):\n    """Text\n\n    more."""\n    return x + x')


def test_the_students_functions_stand_above_the_verdicts_wherever_the_module_is(build):
    files = handed(parts="def double(x):\n    return x + x\n\ndef other():\n    pass\n")
    files["home/week91_demo/parts.py"] = files.pop("parts.py")
    shown = build(files)
    source = cell(shown, "task-91-1")["source"]
    assert "def double(x):\n    return x + x" in source and "other" not in source
    assert "parts.py has no triple" in cell(shown, "task-91-3")["source"]
    del files["home/week91_demo/parts.py"]
    assert "parts.py is not there" in cell(build(files), "task-91-1")["source"]


@pytest.mark.parametrize(
    "what",
    [
        lambda cells: cells.clear(),
        lambda cells: [c.pop("id") for c in cells],
        lambda cells: [c.update(id=f"renamed-{i}") for i, c in enumerate(cells)],
        lambda cells: [c.update(metadata={}, id=f"renamed-{i}") for i, c in enumerate(cells)],
        lambda cells: cells.reverse(),
        lambda cells: cells.extend(list(cells)),
        lambda cells: [c.update(cell_type="raw") for c in cells],
        lambda cells: [c.update(source=None, metadata=7, outputs="x", id=[]) for c in cells],
        lambda cells: cells.extend([3, None, "x", [], {}]),
    ],
)
def test_whatever_became_of_the_notebook_each_task_has_one_cell(build, what):
    shown = build(change(what))
    assert sorted(graded(shown)) == sorted(CELLS)
    assert len({c["id"] for c in shown["cells"]}) == len(shown["cells"])


@pytest.mark.parametrize(
    "what",
    [
        lambda cells: [c.update(metadata={}) for c in cells],
        lambda cells: [c.pop("id") for c in cells],
        lambda cells: [(c.pop("id"), c.update(metadata={})) for c in cells if c["cell_type"] == "code"],
    ],
)
def test_a_check_is_found_by_id_by_metadata_or_by_its_words(build, what):
    shown = build(change(what))
    sources = [c["source"] for c in shown["cells"]]
    assert sources.index(cell(shown, "task-91-1")["source"]) < sources.index("The end.")
    assert not any("Not found" in s for s in sources)


@pytest.mark.parametrize(
    "data, said",
    [
        (b"{", "is not a notebook"),
        (b"[]", "is not a notebook"),
        (b"\xff\xfe", "is not a notebook"),
        (b'{"cells": 3}', "is not a notebook"),
        (b"[" * 100_000, "is not a notebook"),
        (b'{"cells": []}', "is empty"),
        (json.dumps({"cells": [markdown("a", "x")] * 500}).encode(), "the first 400 are shown"),
        (b" " * 20_000_001, "too large"),
    ],
)
def test_a_notebook_that_is_none_costs_no_verdict(build, data, said):
    shown = build({**handed(), "lab.ipynb": data})
    assert sorted(graded(shown)) == sorted(CELLS) and said in everything(shown["cells"][0])


def test_the_notebook_is_the_one_that_grading_takes_whatever_its_name(build, week):
    assert "What was handed in is not here" in everything(build({})) and "secret" not in everything(build({}))
    other = {"other.ipynb": b'{"cells": []}'}
    assert "No lab.ipynb was handed in" in everything(build(other))
    files = handed("Because of it.", "4.5")
    files["Lab 91 (1).ipynb"] = files.pop("lab.ipynb")
    said = everything(build({**files, **other}))
    assert "Because of it." in said and "No lab.ipynb" not in said
    assert documents(week, {**files, **other}) == ["other.ipynb"]


def test_of_a_whole_tree_nothing_of_another_week_is_shown(build):
    own = {f"tree/mine/{name}": data for name, data in handed("Because of it.", "4.5").items()}
    other = {"lab.ipynb": b'{"cells": []}', "predictions.jsonl": b"FOREIGN", "parts.py": b"def foreign(): FOREIGN"}
    said = everything(build({**own, **{f"week92_b/{name}": data for name, data in other.items()}}))
    assert said == everything(build(own)) and "Because of it." in said


def test_what_is_there_of_the_written_task_is_shown(build):
    there = cell(build(handed("Because of it.", "4.5")), "task-91-2-there")["outputs"][0]["text"]
    assert 'task-91-2-prediction-1: guess = on_record("prediction 1", seconds=4.5)' in there
    assert "task-91-2-why: 3 words" in there
    assert "2026-10-01T10:00:00+02:00" in there, "when the prediction was made"
    untouched = json.loads(handed()["lab.ipynb"])
    untouched["cells"] = [c for c in untouched["cells"] if "prediction" not in c["id"]]
    cell(untouched, "task-91-2-why")["source"] = "*Task 91.2: why. Write your answer here.*"
    there = cell(build({"lab.ipynb": json.dumps(untouched).encode()}), "task-91-2-there")["outputs"][0]["text"]
    assert "task-91-2-prediction-1: not in the notebook" in there and "task-91-2-why: as it was handed out" in there


def test_what_concerns_the_attempt_stands_first(build):
    one = mark(notes=["there is no parts.py"], attention=["its machine was slow"], isolation=UNSANDBOXED)
    text = build(handed(), one, "attempt 3 counts")["cells"][0]["outputs"][0]["text"]
    for words in ("Submission 17", "attempt 3 counts", "UNSANDBOXED", "its machine was slow", "there is no parts.py"):
        assert words in text
    shown = build(handed(), mark(faults=("91.1",)))
    for task, failed in (("task-91-1", True), ("task-91-3", False)):
        assert ("Not graded automatically: the grader itself failed here" in everything(cell(shown, task))) == failed


def test_the_diagnosis_is_escaped_shown_once_and_complete(build):
    one = mark({"91.1": 1})
    one.tasks[0]["cases"] = [
        case("wrong", 0, 2, "<script>x</script>\nexpected 6"),
        case("wrong", 0, 1, "<script>x</script>\nexpected 6"),
        case("passed", 1, 1),
    ]
    one.tasks[0]["cases"][0]["printed"] = "debug <b>"
    data = cell(build(handed(), one), "task-91-1")["outputs"][0]["data"]
    assert "1 of 4 points: 1 of 3 cases passed" in data["text/html"]
    assert data["text/html"].count("&lt;script&gt;x&lt;/script&gt;\nexpected 6") == 1
    assert "as above" in data["text/html"] and "debug &lt;b&gt;" in data["text/html"]
    ours = data["text/html"].replace("<p><b>", "").replace('"><b>', "")
    assert "<script" not in ours and "<b>" not in ours


def test_a_students_own_pictures_and_prints_stay(build):
    shown_picture = f'<figure><img alt="two &lt; three" src="data:image/png;base64,{PNG}"></figure>'
    outputs = [
        {"output_type": "display_data", "metadata": {}, "data": {"text/html": [shown_picture]}},
        {"output_type": "display_data", "metadata": {"image/png": {"width": 9}}, "data": {"image/png": PNG}},
        {"output_type": "stream", "name": "stderr", "text": ["a ", "warning"]},
        {"output_type": "execute_result", "data": {"text/plain": "42"}, "metadata": {}, "execution_count": 1},
    ]
    kept = build(with_cells(code("p", "plot()", outputs)))["cells"][1]["outputs"]
    assert [k["data"].get("image/png") for k in kept[:2]] == [PNG, PNG]
    assert kept[0]["metadata"] == {"image/png": {"alt": "two < three"}} and kept[1]["metadata"] == {}
    assert [k["text"] for k in kept[2:]] == ["a warning", "42"]


@pytest.mark.parametrize(
    "data",
    [
        'x" onerror="alert(1)', PNG + '"><b>', "!!!!", "", base64.b64encode(b"<svg onload=alert(1)>").decode(),
        PNG * 200_000,
    ],
)  # fmt: skip
def test_a_picture_that_is_none_is_not_embedded(build, data):
    output = {"output_type": "display_data", "metadata": {}, "data": {"image/png": data}}
    kept = build(with_cells(code("p", "plot()", [output])))["cells"][1]["outputs"]
    assert [k["output_type"] for k in kept] == ["stream"] and len(kept[0]["text"]) < 100


def test_floods_are_cut_and_characters_that_change_how_text_reads_do_not_get_through(build):
    many = [{"output_type": "stream", "name": "stdout", "text": "x"}] * 1000
    long = [{"output_type": "stream", "name": "stdout", "text": "y" * 1_000_000}]
    odd = markdown("c", "a\u202eb\x1b[31mc\x00d \ud800 שלום")
    shown = build(with_cells(code("a", "z" * 1_000_000, many), code("b", "", long), odd))
    assert len(everything(shown)) < 200_000
    assert "more characters are not shown" in everything(shown) and "more outputs are not shown" in everything(shown)
    assert shown["cells"][3]["source"] == "a\ufffdb\ufffd[31mc\ufffdd \ufffd שלום"
    everything(shown).encode()


def test_a_rubric_ends_with_its_part_and_has_a_stand_in(week, tmp_path):
    (tmp_path / "lab.ipynb").write_text("{")
    with pytest.raises(LabError, match="is not a notebook"):
        read_notebook(tmp_path / "lab.ipynb")
    task = week.task("91.2")
    extra = {"cells": [markdown("a", f"# Intro\n\nx\n\n{RUBRIC}\n\n### a detail\n\ny\n\n## 4. Task 91.21\n\nz")]}
    assert rubric(extra, task) == f"{RUBRIC}\n\n### a detail\n\ny\n"
    other = {"cells": [markdown("a", "## Task 91.21\n\nz")]}
    assert rubric(other, task) == "## Task 91.2: why\n\n6 points, graded by hand."


def test_comments_are_read_in_one_pass():
    """A pattern that began anew at each "#" took minutes for such a cell."""
    cell = {"cell_type": "code", "source": "x = 1  ## my own words # and more\n" + "#" * 50_000}
    assert _remarks(cell) == {"my own words # and more"}

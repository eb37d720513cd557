"""Where a new instructor stumbled in a whole term: each of these once cost more than a minute."""

from __future__ import annotations

import base64
import io
import json
import re
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from grading import marks
from grading.answers import documents, runs, unanswered
from grading.gradebook.view import MOST_CELLS
from grading.gradescope import pack as gradescope
from grading.intake.arrange import arrange
from grading.intake.collect import collect
from grading.intake.find import find_submissions
from grading.intake.load import Submission, load
from grading.intake.policy import DEFAULTS
from grading.intake.rename import rename
from grading.reports import canvas, class_page, mail, status
from grading.reports.by_hand import ByHand
from grading.reports.export import table as csv_table
from grading.reports.feedback import feedback
from grading.reports.overview import overview
from grading.reports.pictures import own_pictures
from grading.reports.standing import Standing
from grading.run import Report
from grading.table import class_table
from labkit.checks.tasks import find_weeks, load_week
from labkit.checks.verdict import NO_RESULT
from labkit.errors import LabError
from tests.grading.reports.aclass import AWKWARD, mark, scored
from tests.grading.reports.pngs import png

ROOT = Path(__file__).resolve().parents[2]
WEEKS = find_weeks(ROOT)


@pytest.fixture(scope="module")
def week():
    return load_week(ROOT / "week13_allreduce")


@pytest.fixture
def collected(tmp_path, week):
    """anna has handed in one .zip in which a module is misnamed."""
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "anna.zip", "w") as archive:
        archive.writestr("work/timing.py", "def time_collective(): pass\n")
        archive.writestr("work/collectives (1).py", "def ring_all_gather(): pass\n")
    collect([tmp_path / "in"], week, tmp_path / "submitted", DEFAULTS)
    return tmp_path / "submitted"


def loaded(folder, week):
    (entry,) = find_submissions(folder, week)
    return load(entry, week)


def shown(*made):
    out = io.StringIO()
    class_table(Report(1, list(made)), Console(file=out, width=200))
    return out.getvalue()


def test_a_file_of_quite_another_name_is_told_by_what_it_defines(collected, week):
    """`topologie final.py` is no word like topology.py; the functions in it are."""
    text = (ROOT / "week13_allreduce" / "topology.py").read_text()
    submission = loaded(collected, week)
    submission.files["work/topologie final.py"] = text.encode()
    submission.files["work/helpers.py"] = b"def helper(): pass\n"
    package = arrange(submission, week)
    assert package.lookalikes["topology"] == "work/topologie final.py"
    assert "looks like it: a file counts under its own name only" in package.missing["topology"]
    del submission.files["work/topologie final.py"]
    assert arrange(submission, week).lookalikes["topology"] == ""


def test_a_misnamed_file_in_a_collected_zip_is_mended_by_the_command_that_is_shown(collected, week):
    before = loaded(collected, week)
    package = arrange(before, week)
    assert package.lookalikes["collectives"] == "work/collectives (1).py" and "collectives" in package.missing
    said = shown(mark("anna", missing={"collectives.py": package.lookalikes["collectives"]}))
    command = "grade rename week13 anna 'work/collectives (1).py' work/collectives.py"
    assert command in said
    archive = (collected / "week13" / "anna" / "1.zip").read_bytes()
    assert "now `grade run week13`" in rename(collected, week, "anna", "work/collectives (1).py", "work/collectives.py")
    after = loaded(collected, week)
    assert "collectives" not in arrange(after, week).missing
    assert after.digest != before.digest, "so the next run grades it anew"
    assert any("your instructor renamed it" in note for note in after.notes)
    assert (collected / "week13" / "anna" / "1.zip").read_bytes() == archive, "what was handed in stays as it is"
    rename(collected, week, "anna", "work/collectives (1).py", "", undo=True)
    assert loaded(collected, week).digest == before.digest


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("collectives.py", "x.py", "holds no collectives.py"),
        ("work/collectives (1).py", "../../x.py", "leads out"),
        ("work/collectives (1).py", "work/timing.py", "holds a work/timing.py already"),
    ],
)
def test_what_cannot_be_renamed_is_refused(collected, week, old, new, why):
    with pytest.raises(LabError, match=why):
        rename(collected, week, "anna", old, new)


def test_only_collected_attempts_are_renamed(tmp_path, week):
    (tmp_path / "submitted" / "anna").mkdir(parents=True)
    with pytest.raises(LabError, match="rename the file in it yourself"):
        rename(tmp_path / "submitted", week, "anna", "a.py", "b.py")


def test_what_many_have_in_common_is_told_once():
    said = shown(*(mark(f"s{n:02}", notes=["There is no notebook."]) for n in range(9)), mark("x", notes=["Mine."]))
    assert said.count("There is no notebook.") == 1 and "s00, s01, s02, s03, s04, s05 and 3 more: There" in said
    assert "x: Mine." in said


@pytest.mark.parametrize("name", [*AWKWARD, "Олена Шевченко", "Zoë", "a%20b", "%D0%B8"])
def test_a_folder_is_called_as_the_student_is_and_comes_back(name):
    folder = marks.quoted(name)
    assert marks.unquoted(folder) == name and "/" not in folder and folder.strip(".")
    letters = [c for c in name if c.isalpha()]
    assert [c for c in marks.unquoted(folder) if c.isalpha()] == letters
    if all(c.isalpha() or c in " @+,=~_" for c in name):
        assert folder == name, "a person can read it"


def blank_of(week):
    from grading.gradebook.cells import read_notebook

    return json.dumps(read_notebook(week.notebook)).encode()


@pytest.mark.parametrize(
    "name",
    [
        *("answer.pages", "IMG_2041.HEIC", "clocks.webp", "work/sketch.svg", "talk.pptx", "clocks.xlsx", "answer"),
        *("times.csv", "times.json", "clip.mp4", "runs/first/answer.pdf", "lab.ipynb.json", "pyvenv/answer.heic"),
        *("runs/first/ANSWER.ZIP", "runs/first/mine.ipynb", "runs/first.heic", "runs/second/answer.heic"),
    ],
)
def test_whatever_lies_beside_an_untouched_notebook_is_told_and_waits(week, name):
    files = {"lab.ipynb": blank_of(week), "runs/first/run.json": b"", name: b"my answer"}
    assert documents(week, files) == [name] and unanswered(week, {name: b"my answer"}) == []


def test_code_what_tools_leave_and_the_courses_own_files_are_no_answers(week):
    names = ["helper.py", "work/mine.toml", "Makefile", "docs/students.md", "labkit/py.typed", "empty.heic"]
    names += ["steps.jsonl"]
    made = ["venv/pyvenv.cfg", "venv/bin/activate", "labs.egg-info/PKG-INFO", "labs.egg-info/SOURCES.txt"]
    made += ["labs-1.0.dist-info/METADATA", "labs-1.0.dist-info/top_level.txt"]
    assert documents(week, {"work/pyvenv.cfg": b"x", "work/answer.pdf": b"x"}) == ["work/answer.pdf"], "made in place"
    run = ["runs/first/run.json", "runs/first/steps.jsonl", "runs/first/checkpoints/2/rank-0", "runs/first/run.log"]
    files = {"lab.ipynb": blank_of(week)} | {name: b" \n" if "empty" in name else b"x" for name in (*names, *made)}
    assert documents(week, files) == [] and unanswered(week, files) == ["13.7"]
    files |= dict.fromkeys(run, b"x")
    assert documents(week, files) == [] and unanswered(week, files) == [], "a run's folder is told as such, and waits"
    for top in ("run.json", "pyvenv.cfg"):  # all lies beside them: no folder of a run, or of a tool
        assert "answer.heic" in documents(week, {top: b"x", "answer.heic": b"x"})


def test_an_answer_in_a_comment_waits(week):
    notebook = json.loads(blank_of(week))
    code = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code" and not cell["id"].startswith("task"))
    own = code["source"]
    quiet = (own, f"{own}\nx = 1", f"#\n{own}", own.replace("50e9 ", "60e9 "))
    quiet += (f"{own}\nx = 'ring'", f"%%time\n{own}")
    told = [
        "# 1, 30 and 442 us",
        "# - the ring",
        "#\t(a) the ring",
        "# \u201cThe ring\u201d",
        "x = 1  # the ring sends less",
    ]
    told += [
        '"""The ring sends less."""',
        "print('the ring sends less')",
        "The ring sends less.",
        "x = f'the ring {1}'",
    ]
    for source in (*quiet, *(f"{text}\n{own}" for text in told), *(f"{own}\n{text}" for text in told)):
        code["source"], waits = source, source not in quiet
        assert (unanswered(week, {"lab.ipynb": json.dumps(notebook).encode()}) == []) is waits, source


def test_an_answered_notebook_beside_an_untouched_one_waits(week):
    """The one nearest to the top is shown, and is as it was handed out."""
    blank = blank_of(week)
    answered = blank.replace(b"Write your answer here", b"30 us")
    assert answered != blank
    for other in ("work/lab.ipynb", "week13_allreduce/lab.ipynb", "work/LAB.ipynb"):
        files = {"lab.ipynb": blank, other: answered}
        assert documents(week, files) == [other] and unanswered(week, files) == []
        assert documents(week, {**files, other: blank}) == [] and unanswered(week, {**files, other: blank}) == ["13.7"]
    assert documents(week, {"lab.ipynb": blank, "week14_fsdp/lab.ipynb": answered}) == []


def test_a_notebook_that_a_browser_called_json_is_the_notebook(week):
    picture = {"output_type": "display_data", "metadata": {}, "data": {"image/png": base64.b64encode(png()).decode()}}
    drawn = json.loads(blank_of(week))
    next(cell for cell in drawn["cells"] if cell["cell_type"] == "code")["outputs"] = [picture]
    for name in ("lab.ipynb.json", "lab.ipynb.txt", "LAB.IPYNB"):
        package = arrange(Submission.of("anna", {name: blank_of(week)}), week)
        assert package.notebook is not None and f"{name} is taken as the notebook." in package.notes
        assert any(note.startswith("There is a notebook, but none of the modules") for note in package.notes)
        assert len(own_pictures({name: json.dumps(drawn).encode()})[0]) == 1
    other = arrange(Submission.of("anna", {"lab.ipynb.json": b"{}", "lab.ipynb": blank_of(week)}), week)
    assert other.notebook.path == "lab.ipynb"


def test_work_beside_an_untouched_module_is_told_and_may_take_its_place(tmp_path, week):
    from grading.intake.released import released_week

    untouched = released_week(week).files["cost_model.py"]
    files = {"cost_model.py": untouched, "cost_model (1).py": untouched.replace(b"raise", b"return None or")}
    told = (
        "cost_model.py stands as it was handed out. cost_model (1).py looks like it: a file counts under its own name"
    )
    assert any(note.startswith(told) for note in arrange(Submission.of("anna", files), week).notes)
    text = {"cost_model.py": untouched, "cost_model.md": b"The model of costs"}
    plots = {"cost_model.py": untouched, "plot_cost_model.py": b"def plot(): pass", "test_cost_model.py": b"x = 1"}
    for other in ({**files, "cost_model (1).py": untouched + b"\n"}, {**files, "cost_model.py": b"x = 1"}, text, plots):
        assert not any("stands as" in note for note in arrange(Submission.of("anna", other), week).notes)
    files["cost_model.py"] = untouched.replace(b"\n", b"\r\n")  # as an editor on Windows leaves it
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(f"bert/work/{name}", (b"\xef\xbb\xbf" if name == "cost_model.py" else b"") + data)
        archive.writestr("bert/work/timing (1).py", files["cost_model (1).py"])
        archive.writestr("bert/work/timing.py", "def time_collective(): pass\n")
    collect([tmp_path / "in.zip"], week, tmp_path / "submitted", DEFAULTS)
    with pytest.raises(LabError, match="holds a work/timing.py already"):
        rename(tmp_path / "submitted", week, "bert", "work/timing (1).py", "work/timing.py")
    rename(tmp_path / "submitted", week, "bert", "work/cost_model (1).py", "work/cost_model.py")
    package = arrange(loaded(tmp_path / "submitted", week), week)
    assert package.files["week13_allreduce/cost_model.py"] == files["cost_model (1).py"]


@pytest.mark.parametrize("week", WEEKS, ids=lambda week: week.name)
def test_of_a_whole_tree_the_weeks_own_notebook_and_predictions_are_shown(week):
    """Each week's notebook is called lab.ipynb: formgrader showed that of the first folder by name."""
    from grading.gradebook.view import notebook_of

    files = {f"tree/{one.package}/lab.ipynb": blank_of(one) for one in WEEKS}
    files |= {f"tree/{one.package}/{name}": b"x" for one in WEEKS for name in ("predictions.jsonl", "answer.pdf")}
    assert notebook_of(week, files) == f"tree/{week.package}/lab.ipynb"
    assert documents(week, files) == [f"tree/{week.package}/answer.pdf"]
    others = {path: data for path, data in files.items() if week.package not in path.split("/")}
    written = [task.id for task in week.tasks if task.kind == "written"]
    assert documents(week, others) == [] and unanswered(week, others) == written
    blank = {**others, f"tree/{week.package}/lab.ipynb": blank_of(week)}
    assert unanswered(week, blank) == written and unanswered(week, {**blank, "note.pdf": b"x"}) == []
    from grading.reports import feedback as pages

    theirs = dict.fromkeys([*files, f"{week.package}/mine.png", f"{week.package}/runs/a/run.json"], b"x")
    assert runs(week, {**theirs, "week99_x/runs/b/run.json": b""}) == [f"{week.package}/runs/a"]
    theirs |= dict.fromkeys(["docs/images/chunk-grid.png", "labkit/a.png", "week99_x/a.png"], b"x")
    named = {path for path in theirs if path.endswith((".png", ".ipynb")) and pages.is_theirs(path, week)}
    assert named == {f"tree/{week.package}/lab.ipynb", f"{week.package}/mine.png"}
    own = [note for note in arrange(Submission.of("anna", files), week).notes if note.startswith("predictions.jsonl")]
    told = [note for note in arrange(Submission.of("anna", blank), week).notes if note.startswith("predictions.jsonl")]
    assert not own and len(told) == ("on_record(" in week.notebook.read_text())


@pytest.mark.parametrize("week", WEEKS, ids=lambda week: week.name)
def test_an_empty_hand_in_waits_for_nobody_in_any_week(week):
    notebook = json.loads(week.notebook.read_text())
    written = [task.id for task in week.tasks if task.kind == "written"]
    assert unanswered(week, {}) == written
    from grading.gradebook.cells import read_notebook

    blank = {"lab.ipynb": json.dumps(read_notebook(week.notebook)).encode(), "README.md": b"as it was"}
    assert unanswered(week, blank) == written, "as it was handed out"
    assert unanswered(week, {**blank, "answer.md": b"On my laptop"}) == []
    assert unanswered(week, {**blank, "predictions.jsonl": b"{}\n"}) == []
    torn = blank["lab.ipynb"][:-200]
    conflict = b"<<<<<<< HEAD\n" + blank["lab.ipynb"]
    for broken in (torn, conflict, b'{"cells": "none"}', b"[]", b"", b" \n"):
        assert unanswered(week, {"lab.ipynb": broken}) == [], "nobody could read it: a person has to"
    assert unanswered(week, {"lab.ipynb": b'{"cells": []}'}) == written
    many = [{"cell_type": "code", "source": ""}] * (MOST_CELLS + 1)
    assert unanswered(week, {"lab.ipynb": json.dumps({"cells": many}).encode()}) == [], "not all were looked at"
    assert unanswered(week, {"week13.tar.gz": b"x"}) == unanswered(week, {"all.zip": b"x"}) == []
    assert documents(week, {**blank, "work.7z": b"x"}) == (["work.7z"] if written else [])
    beside = {"answer.md": b"On my laptop", "work/notes.txt": b"x", "work/predictions.jsonl": b"{}\n", "plot.py": b""}
    assert documents(week, {**blank, **beside}) == ["answer.md", "work/notes.txt"] and documents(week, blank) == []
    record = {"runs/mine/run.json": b"{}", "runs/mine/steps.jsonl": b"", "run.json": b"{}", "other/torun.json": b"{}"}
    assert runs(week, {**blank, **record}) == ["runs/mine", "the folder itself"] and runs(week, blank) == []
    ours = next(ROOT.glob("week16_fp8/results/*/run.json")).parent.relative_to(ROOT).as_posix()
    whole = {**blank, f"tree/{ours}/run.json": b"{}", "results/mine/run.json": b"{}"}
    assert runs(week, whole) == ["results/mine"], "the course's own records come along with a whole tree"
    assert unanswered(week, {**blank, f"{ours}/run.json": b"{}"}) == written
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and "rite your answer here" in "".join(cell["source"]):
            cell["source"] = ["On my laptop the ring wins from 3 MiB on."]
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    added = {
        **notebook,
        "cells": [*notebook["cells"], {"cell_type": "markdown", "metadata": {}, "source": "My answer."}],
    }
    assert unanswered(week, {"lab.ipynb": json.dumps(added).encode()}) == [], "a cell of their own may be the answer"


def test_an_empty_hand_in_has_a_total_and_is_no_misunderstanding(week):
    empty = mark(
        "empty",
        unanswered=["13.7"],
        missing={f"{m}.py": "" for m in ("collectives", "timing", "topology", "cost_model")},
    )
    for task in empty.tasks:
        for case in task["cases"]:
            case.update(verdict=NO_RESULT, points=0, text="There is no such file in this hand-in.")
        task["points"] = None if task["kind"] == "written" else 0
    standing = Standing(empty, [1])
    assert standing.total == 0 and standing.state == "complete" and standing.ungraded == []
    seen = overview(week, [standing, Standing(mark("full"), [1])])
    assert seen.not_understood == []


def test_a_release_speaks_of_no_week_that_is_not_released():
    from grading.tree import student_tree

    for chosen in WEEKS:
        others = [week for week in WEEKS if week.name != chosen.name]
        page = student_tree(ROOT, [chosen]).files["results/README.md"].data.decode()
        assert not [week.name for week in others if week.package in page or week.name in page], chosen.name


@pytest.mark.parametrize("week", WEEKS, ids=lambda week: week.name)
def test_predictions_that_were_not_handed_in_are_told(week):
    """They give points in the written task, and a marker would look for them."""
    from grading.gradebook.cells import read_notebook

    mine = {"lab.ipynb": json.dumps(read_notebook(week.notebook)).encode()}

    def notes(files):
        return [note for note in arrange(Submission.of("anna", files), week).notes if "predictions" in note]

    assert notes({**mine, "work/predictions.jsonl": b"{}\n"}) == []
    assert notes(mine) == ["predictions.jsonl is not in this hand-in: without it no prediction is on record."]
    assert notes({**mine, "predictions.jsonl": b" \n"})[0].startswith("predictions.jsonl is empty")
    assert "predictions (1).jsonl looks like it" in notes({**mine, "predictions (1).jsonl": b"{}\n"})[0]
    assert notes({}) == [], "that nothing came is told already"


def _helps(command, path):
    yield path, command.help or ""
    for one in command.params:
        yield f"{path} {one.name}", getattr(one, "help", None) or ""
    for name, inner in getattr(command, "commands", {}).items():
        yield from _helps(inner, f"{path} {name}")


def test_no_word_in_brackets_vanishes_from_a_help():
    """typer takes [roster] for a style."""
    import typer
    from typer.testing import CliRunner

    from grading.cli import app
    from labkit.cli import app as lab

    for one in (app, lab):
        texts = list(_helps(typer.main.get_command(one), "grade" if one is app else "lab"))
        assert len(texts) > 50
        assert [(place, text) for place, text in texts if re.search(r"(?<!\\)\[[a-z]", text)] == []
    shown = CliRunner().invoke(app, ["status", "--help"], env={"COLUMNS": "200"}).output
    assert "what [roster] in course.toml names" in " ".join(shown.split())


@pytest.mark.parametrize("week", WEEKS, ids=lambda week: week.name)
def test_every_week_goes_through_the_whole_hand_back(week, tmp_path):
    """Of a mark of each week: page, mail, class's page, tables, status, and the autograder's archive."""
    tasks = [
        {
            "id": task.id,
            "title": task.title,
            "kind": task.kind,
            "cell": task.cell,
            "points": None if task.kind == "written" else 0,
            "possible": task.points,
            "cases": [] if task.kind == "written" else [_missed(task.id)],
        }
        for task in week.tasks
        if task.kind != "stretch"
    ]
    by_hand = {task["id"]: ByHand(task["id"], 1, comments=["1: 1"]) for task in tasks if task["kind"] == "written"}
    made = scored(marks.Mark("anna", week.name, tasks=tasks))
    marks.write(tmp_path / "marks", made)
    standing = Standing(made, [1], by_hand=by_hand)
    said = [feedback(week, standing), mail.text(week, standing), class_page.html(overview(week, [standing]))]
    for id in [task["id"] for task in tasks]:
        assert all(id in text for text in said), id
    assert standing.total == len(by_hand) and csv_table(week, [standing])[1][0] == "anna"
    assert canvas.export(week, [standing], tmp_path / "c.csv").lines == 1
    seen = status.status(week, tmp_path / "none", tmp_path / "marks", tmp_path, DEFAULTS, datetime.now(UTC))
    assert status.summary(seen).startswith(f"{week.name}: 1 handed in, 1 graded, {len(by_hand) and 1} wait")
    gradescope.pack(week, WEEKS, tmp_path / "a.zip", seed=1)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        packed = {name.split("/")[1] for name in archive.namelist() if name.startswith("course/")}
    packages = [one.package for one in WEEKS]
    assert packed & set(packages) == set(packages[: packages.index(week.package) + 1])


def _missed(task):
    case = {"test": f"test.py::test_{task}", "behaviour": f"What {task} asks for", "verdict": "wrong", "points": 0}
    return {
        **case,
        "possible": 1,
        "seconds": 0.1,
        "text": "1 came, 2 expected",
        "cause": ["one too few"],
        "printed": "",
    }


@pytest.mark.parametrize("student", ["anna", "a student whose name is of 24", "nguyen-van-a-long-family-name_502"])
def test_the_table_of_status_is_whole_in_80_columns(student, week):
    """Its right end was cut off: "to be g" and then "by hand" stood there."""
    found = status.Status(week, [status.Row(student, 1, None, True, "x", Standing(mark(student), [1]), True)])
    found.rows[0].state = "to be graded by hand"
    console = Console(width=80, file=io.StringIO(), legacy_windows=False)
    status.show(found, console)
    head, *lines = console.file.getvalue().split("\n")
    assert len(head) <= 80 and max(map(len, lines[:-2])) <= 80
    told = "".join(line[head.index("state") :] for line in lines[:-2])
    assert "".join(told.split()) == "tobegradedbyhand", told
    assert "".join("".join(line[: head.index("attempts")].split()) for line in lines[:-2]) == "".join(student.split())

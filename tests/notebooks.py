"""A week's lab.ipynb: its cells, what must be true of them in every week, and a run from top to bottom."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from labkit.checks.markers import strip_notebook
from labkit.checks.tasks import load_week

Cell = dict[str, Any]


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def grade_cells(cells: Iterable[Cell]) -> dict[str, Cell]:
    return {cell["metadata"]["labkit"]["grade_id"]: cell for cell in cells if "labkit" in cell["metadata"]}


@dataclass(frozen=True)
class Run:
    """What a notebook printed, pages and all; the same without tags; its figures, those without a description; the
    tasks that cells wait for; the automatic points of its checks, as (earned, possible)."""

    said: str
    plain: str
    figures: int
    nameless: int
    waits: set[str]
    points: set[tuple[int, int]]


class Notebook:
    """The notebook of a week's package. `text` is the file, `cells` are its cells; `student` are a student's."""

    def __init__(self, package: ModuleType) -> None:
        self.folder = Path(package.__file__ or "").parent
        self.text = (self.folder / "lab.ipynb").read_text(encoding="utf-8")
        self.cells: list[Cell] = json.loads(self.text)["cells"]

    @cached_property
    def student(self) -> list[Cell]:
        return json.loads(strip_notebook(self.text))["cells"]

    def has_its_grade_cells(self) -> None:
        """One for each task but the stretch tasks, under the task's name; and every task is named in the text."""
        week, found = load_week(self.folder), grade_cells(self.cells)
        ids = [cell["id"] for cell in self.cells]
        assert len(set(ids)) == len(ids)
        for task in week.tasks:
            if task.kind == "auto":
                assert source(found[task.cell]).strip() == f'check("{task.id}")'
            if task.kind == "written":
                assert any(name.startswith(task.cell) for name in found)
        for name, cell in found.items():
            task_id = cell["metadata"]["labkit"]["task"]
            assert cell["id"] == name and name.startswith("task-" + task_id.replace(".", "-"))
        text = " ".join(source(cell) for cell in self.cells if cell["cell_type"] == "markdown")
        for task in week.tasks:
            if task.kind != "stretch" or week.name == "week13":  # elsewhere the README names them
                assert re.search(rf"\b{task.id}\b", text), f"task {task.id} is never named"

    def takes_answers_out(self, *names: str) -> None:
        """These cells hold a model answer here, and a place for one in a student's copy."""
        here, there = grade_cells(self.cells), grade_cells(self.student)
        for name in names:
            assert "Write your answer here" in source(there[name])
            assert len(source(there[name])) < 200 < len(source(here[name]))

    def says(self, grade_id: str, words: str) -> bool:
        """Whether a cell holds these words, however they are wrapped."""
        return words in " ".join(source(grade_cells(self.cells)[grade_id]).split())

    def run(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path | None = None, text: str | None = None, timeout: int = 1500
    ) -> Run:
        """All cells executed in a kernel, with nobody there to guess; an error in one is raised. `folder`: a copy of
        the week to run in; `text`: another notebook than the one in it; `timeout`: seconds of a cell that hangs."""
        nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
        pytest.importorskip("ipykernel")
        folder = folder or self.folder
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder.parent), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("PYTHONWARNINGS", "ignore")
        monkeypatch.setenv("LABKIT_GUESSES", "skip")
        notebook = nbformat.reads(text or (folder / "lab.ipynb").read_text(encoding="utf-8"), 4)
        for cell in notebook.cells:  # a student's call has 5 s, on a machine of their own
            cell.source = re.sub(r'^check\(("[\w.]+")\)', r"check(\1, deadline=60)", cell.source, flags=re.MULTILINE)
        where = {"metadata": {"path": str(folder)}}
        nbclient.NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources=where).execute()
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        pages = "".join(o.data.get("text/html", "") for o in outputs if o.output_type == "display_data")
        said = "".join(o.text for o in outputs if o.output_type == "stream") + pages
        plain = re.sub(r"<[^>]+>", "", said)
        waits = set(re.findall(r"waits for task ([\w.]*\w)", said))
        points = {(int(earned), int(of)) for earned, of in re.findall(r"(\d+) of (\d+) automatic points", plain)}
        return Run(said, plain, pages.count("<figure"), pages.count('alt=""'), waits, points)

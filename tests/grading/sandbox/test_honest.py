"""Honest submissions lose nothing: what students do without meaning harm, through intake and sandbox, to the points."""

import json

import pytest

from grading.intake.arrange import arrange
from grading.intake.submission import Submission
from tests.grading.sandbox.attacking import DEADLINE
from tests.grading.sandbox.boxed import boxed
from tests.grading.sandbox.canary import OPS

BODY = "    y = x.clone()\n"
HABITS = {
    "prints": ("", '    print("rank", group.rank, "has", x)\n'),
    "prints 200 kB": ("", '    print("x" * 200_000)\n'),
    "prints what a terminal obeys": ("", '    print("\\x1b[31mred\\x1b[0m", "\\u202e")\n'),
    "warns": ("import warnings\nwarnings.warn('careful')\n", '    warnings.warn("really")\n'),
    "writes to stderr": ("import sys\n", '    print("note", file=sys.stderr, flush=True)\n'),
    "logs": ("import logging\nlogging.basicConfig(level=logging.DEBUG)\n", '    logging.info("here")\n'),
    "keeps a file for a moment": ("import tempfile\n", "    with tempfile.TemporaryFile() as f: f.write(b'1')\n"),
    "seeds": ("import random, numpy\n", "    random.seed(1); numpy.random.seed(1); torch.manual_seed(1)\n"),
    "asks for threads": ("", "    torch.set_num_threads(4)\n"),
    "starts a thread": ("import threading\n", "    t = threading.Thread(target=print); t.start(); t.join()\n"),
    "runs a program": ("import subprocess, sys\n", "    subprocess.run([sys.executable, '-c', 'pass'], check=True)\n"),
    "imports a lot": (
        "import json, csv, pathlib, dataclasses, typing, math, functools, collections, inspect\n"
        "import torch.nn.functional as F, torch.distributed as dist\nimport matplotlib\n",
        "",
    ),
    "draws": ("import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\n", ""),
    "asks for the time": ("import time, os\n", "    time.sleep(0.01); os.cpu_count(); time.process_time()\n"),
    "asks for limits": ("import resource\n", "    resource.getrlimit(resource.RLIMIT_NOFILE)\n"),
    "catches everything": ("", "    try: 1 / 0\n    except: pass\n"),
    "collects garbage": ("import gc\n", "    gc.collect()\n"),
    "is in French": ("# coding: utf-8\n# Réduire, c'est additionner: 和 Σ\nÉ = 'é'\n", ""),
}


@pytest.mark.thorough
@pytest.mark.parametrize("habit", HABITS)
def test_habits(graded, habit):
    top, inside = HABITS[habit]
    text = top + OPS.replace(BODY, inside + BODY)
    assert inside in text
    outcome = graded(text, ["91.1", "91.2"])
    assert outcome.full, [f"{case.verdict}: {case.text}" for case in outcome.cases]
    for case in outcome.cases:
        assert len(case.printed) < 20_000 and "\x1b" not in case.printed


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: text.rstrip(),
        lambda text: b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + text,
    ],
    ids=["CRLF", "no last line end", "latin-1"],
)
def test_how_an_editor_saves(graded, change):
    assert graded(change(OPS.encode()), ["91.1", "91.2"]).full


week13, week15 = boxed("week13_allreduce", DEADLINE), boxed("week15_tp_attention", DEADLINE)


def test_the_reference_in_a_students_hands_keeps_full_marks(week13):
    """Own helpers, other line ends, a byte order mark, a notebook without its cells."""
    files, here = dict(week13.files), "week13_allreduce"
    files[f"{here}/mine.py"] = "# Größe: 数\nfrom . import also_mine\nVALUE = also_mine.VALUE\n".encode()
    files[f"{here}/also_mine.py"] = b"import inside\nVALUE = 1\n"
    files["inside.py"] = b"import helpers_of_mine\n"
    files["helpers_of_mine.py"] = b"print('imported')\n"
    files[f"{here}/notes.txt"] = "naïve\n".encode("latin-1")
    files[f"{here}/.DS_Store"] = bytes(100)
    loud = b"\nimport sys, warnings\nprint('hello', file=sys.stderr)\nwarnings.warn('old')\nprint('x' * 200_000)\n"
    own = {
        "collectives": b"\nfrom .mine import VALUE\nfrom week13_allreduce.mine import VALUE as V\n" + loud,
        "topology": b"\nfrom week13_allreduce import mine\nimport helpers_of_mine\n",
        "timing": "\n# 時計: l'horloge\n".encode(),
        "cost_model": b"",
    }
    for module, more in own.items():
        path = f"{here}/{module}.py"
        files[path] = b"\xef\xbb\xbf" + (files[path] + more).replace(b"\n", b"\r\n")
    notebook = json.loads(files[f"{here}/lab.ipynb"])
    notebook["cells"] = [
        {**cell, "id": f"renamed-{number}", "metadata": {}}
        for number, cell in enumerate(notebook["cells"])
        if number % 3
    ]
    files[f"{here}/lab.ipynb"] = json.dumps(notebook).encode()
    assert "inside.py" in arrange(Submission.of("anna", files), week13.week).files
    outcome = week13.check([], files)
    assert outcome.earned == 80, [(c.behaviour, c.text) for c in outcome.cases if c.verdict != "passed"]
    assert outcome.full


@pytest.mark.thorough
def test_a_module_that_python_cannot_read_costs_its_own_task_alone(week15):
    """A merge that was left in linears.py, on which 15.2 to 15.4 stand and whose given parts they import, took 60
    points of 90; with the file left away it took 15."""
    outcome = week15.check(["15.1", "15.4"], week15.edited("linears", "<<<<<<< HEAD\n" + week15.source("linears")))
    assert {case.verdict for case in outcome.of("15.1")} == {"crashed"}
    assert all("SyntaxError" in case.text and "<<<<<<< HEAD" in case.text for case in outcome.of("15.1"))
    assert all(case.verdict == "passed" for case in outcome.of("15.4"))

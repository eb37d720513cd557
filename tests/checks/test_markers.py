"""Blanks: found, taken out, and never half."""

import json
import re

import pytest

from labkit.checks.markers import strip, strip_notebook
from labkit.errors import LabError

MODULE = '''"""A module."""
import math


def area(r):
    """The area."""
    ### BEGIN SOLUTION 91.1 area of a circle
    x = r * r
    return math.pi * x
    ### END SOLUTION


def given(r):
    if r > 0:
        ### BEGIN SOLUTION 91.2
        return r
        ### END SOLUTION
    return 0
'''


def test_a_hole_in_a_function_becomes_a_raise():
    area, given = re.findall(r"    ### BEGIN.*?### END SOLUTION\n", MODULE, re.DOTALL)
    want = MODULE.replace(area, '    raise NotImplementedError("Task 91.1: area of a circle")\n')
    assert strip(MODULE) == want.replace(given, '    raise NotImplementedError("Task 91.2")\n')


def test_quotes_in_a_title_survive():
    text = 'def f():\n    ### BEGIN SOLUTION 1.1 say "hi" \\ bye\n    return 1\n    ### END SOLUTION\n'
    namespace = {}
    exec(strip(text), namespace)
    with pytest.raises(NotImplementedError, match='say "hi"'):
        namespace["f"]()


AROUND = '''
class Net:
    """Given."""

    def given(self):
        return 1

    ### BEGIN SOLUTION 91.3 the layers
    @staticmethod
    def forward(ctx, x, *, scale: float = 2.0):
        """[B] -> [B]"""
        return x * scale

    def backward(ctx, grad):
        return grad
    ### END SOLUTION


### BEGIN SOLUTION 91.4 a class of your own
class Own(Net):
    """Docstring stays."""
    secret = 42

    def run(self):
        return self.secret


def helper(a, b=1):
    return a + b
### END SOLUTION


def outer():
    def inner():
        return 1
    ### BEGIN SOLUTION 91.5
    return inner()
    ### END SOLUTION
'''


def test_holes_outside_functions_keep_signatures_and_the_import_alive():
    namespace = {}
    text = strip(AROUND)
    exec(text, namespace)
    assert "42" not in text and "x * scale" not in text
    for call in (
        lambda: namespace["Net"].forward(None, 1, scale=3.0),
        lambda: namespace["Net"].backward(None, 1),
        lambda: namespace["Own"]().run(),
        lambda: namespace["helper"](1),
    ):
        with pytest.raises(NotImplementedError, match=r"Task 91\.[34]: "):
            call()
    with pytest.raises(NotImplementedError, match="Task 91.5"):
        namespace["outer"]()
    assert namespace["Net"]().given() == 1 and namespace["Own"].__doc__ == "Docstring stays."
    assert namespace["Net"].forward.__doc__ == "[B] -> [B]"


def blank(body):
    return f"def f():\n    ### BEGIN SOLUTION 1.1\n{body}    ### END SOLUTION\n"


@pytest.mark.parametrize(
    "text, line, part",
    [
        ("x = 1\n### END SOLUTION\n", 2, "never began"),
        ("def f():\n    ### BEGIN SOLUTION 1.1\n    return 1\n", 2, "never ends"),
        (blank("    ### BEGIN SOLUTION 1.2\n    return 1\n    ### END SOLUTION\n"), 3, "began in line 2"),
        (blank("    return 1\n") + blank("    return 1\n").replace("### END", "# END"), 8, "almost"),
        ("def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n", 2, "almost"),
        ("def f():\n    ## BEGIN SOLUTION 1.1\n    return 1\n    ### END SOLUTION\n", 2, "almost"),
        ("x = [\n### BEGIN SOLUTION 1.1\n1\n### END SOLUTION\n]\n", 3, "may hold functions and classes only"),
        ("### BEGIN SOLUTION 1.1\nX = 3\n### END SOLUTION\n", 2, "may hold functions and classes only"),
        ("### BEGIN SOLUTION 1.1\n### END SOLUTION\n", 1, "empty"),
        ("def f(:\n    ### BEGIN SOLUTION 1.1\n    return 1\n    ### END SOLUTION\n", 1, "not valid Python"),
        (
            "def f():\n    x = (\n    ### BEGIN SOLUTION 1.1\n    1\n    ### END SOLUTION\n    )\n",
            3,
            "not valid Python",
        ),
    ],
)
def test_bad_markers_name_file_and_line(text, line, part):
    with pytest.raises(LabError, match=part) as caught:
        strip(text, "ops.py")
    assert str(caught.value).startswith(f"ops.py:{line}:")


def cell(kind, source, **more):
    return {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True), **more}


def notebook(*cells):
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def test_notebook_cells():
    code = "%autoreload 2\n### BEGIN SOLUTION 13.7 your prediction\nguess = 42\n### END SOLUTION\nprint(1)\n"
    why = "# Why?\n<!-- BEGIN SOLUTION 13.7 three clocks -->\nBecause.\n<!-- END SOLUTION -->\n"
    ran = {"outputs": [{"output_type": "stream", "text": ["42"]}], "execution_count": 3}
    talk = cell("markdown", "plain ### BEGIN SOLUTION is only talked about here\n")
    text = notebook(cell("code", code, **ran), cell("markdown", why), talk)
    code, answer, same = json.loads(strip_notebook(text))["cells"]
    assert "".join(code["source"]) == (
        '%autoreload 2\nraise NotImplementedError("Task 13.7: your prediction")\nprint(1)\n'
    )
    assert code["outputs"] == [] and code["execution_count"] is None
    assert "".join(answer["source"]) == "# Why?\n*Task 13.7: three clocks. Write your answer here.*\n"
    assert same == talk


@pytest.mark.parametrize(
    "bad",
    [
        cell("code", "### BEGIN SOLUTION 13.7\n1\n", outputs=[], execution_count=None),
        cell("markdown", "<!-- BEGIN SOLUTION 13.7 -->\nBecause.\n"),
        cell("markdown", "<!-- BEGIN SOLUTION -->\nBecause.\n<!-- END SOLUTION -->\n"),
    ],
)
def test_bad_notebook_markers_name_the_cell(bad):
    with pytest.raises(LabError, match="lab.ipynb, cell 2:1"):
        strip_notebook(notebook(cell("markdown", "fine"), bad), "lab.ipynb")

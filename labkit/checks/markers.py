"""Solution markers: where the blanks are, and how a student's copy is made from the one source.

In a module, a solution stands between two comments, indented like the code it holds:

    ### BEGIN SOLUTION 13.4 ring all-reduce
    ...
    ### END SOLUTION

`strip` makes `raise NotImplementedError("Task 13.4: ring all-reduce")` of it. In a class body or at module level a
solution holds functions and classes only, and each keeps its signature and docstring. In a notebook, code cells hold
the same markers, and markdown cells `<!-- BEGIN SOLUTION 13.7 title -->` and `<!-- END SOLUTION -->`.
"""

import ast
import json
import re
import textwrap
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError

_WHAT = r"BEGIN SOLUTION (?P<task>(?:\d+|C)\.\d+)(?:[ \t]+(?P<title>\S.*?))?[ \t]*"
_BEGIN = re.compile(rf"^(?P<indent>[ \t]*)### {_WHAT}$")
_END = re.compile(r"^[ \t]*### END SOLUTION[ \t]*$")
_ANSWER_BEGIN = re.compile(rf"^(?P<indent>[ \t]*)<!-- {_WHAT}-->[ \t]*$")
_ANSWER_END = re.compile(r"^[ \t]*<!-- END SOLUTION -->[ \t]*$")
# a line that means to be a marker and is none is an error, never a leak
_LIKE = re.compile(r"(BEGIN|END)\s+SOLUTION")

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Blank:
    """One blank, a solution in a text: its task, its title, the 1-based lines of its markers, and its indentation."""

    task: str
    title: str
    begin: int
    end: int
    indent: str

    @property
    def message(self) -> str:
        return f"Task {self.task}: {self.title}" if self.title else f"Task {self.task}"


def blanks(text: str, name: str = "this text", *, markdown: bool = False) -> list[Blank]:
    """All solutions of a text, in order. LabError names file and line of an unbalanced, nested or misspelt marker."""
    begin_mark, end_mark = (_ANSWER_BEGIN, _ANSWER_END) if markdown else (_BEGIN, _END)
    found: list[Blank] = []
    open_: tuple[int, re.Match] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        begins = begin_mark.match(line)
        if begins and open_:
            raise LabError(f"{name}:{number}: a solution begins in the one that began in line {open_[0]}; close that")
        if begins:
            open_ = number, begins
        elif end_mark.match(line):
            if not open_:
                raise LabError(f"{name}:{number}: a solution ends here that never began")
            first, match = open_
            found.append(Blank(match["task"], match["title"] or "", first, number, match["indent"]))
            open_ = None
        elif _LIKE.search(line) and ("<!--" in line if markdown else line.lstrip().startswith("#")):
            form = "<!-- BEGIN SOLUTION 13.4 title -->" if markdown else "### BEGIN SOLUTION 13.4 title"
            raise LabError(f"{name}:{number}: this is almost a solution marker; write '{form}', or END SOLUTION")
    if open_:
        raise LabError(f"{name}:{open_[0]}: this solution never ends; add '### END SOLUTION'")
    return found


def strip(text: str, name: str = "this text", keep: Collection[str] = ()) -> str:
    """The students' version of a module's source text; solutions of the tasks in `keep` stay. LabError as of `blanks`."""
    found = [blank for blank in blanks(text, name) if blank.task not in keep]
    if not found:
        return text
    tree = _parsed(text, name, "this is not valid Python, so its solutions cannot be taken out")

    def without(blank: Blank, body: str) -> str:
        return _raise(blank, body) if _inside_function(tree, blank) else _stubs(blank, body, name)

    result = _replace(text, found, without)
    _parsed(result, name, "without its solutions, which must be whole statements, this is not valid Python")
    return result


def _parsed(text: str, name: str, complaint: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise LabError(f"{name}:{error.lineno}: {complaint}: {error.msg}") from None


def strip_notebook(text: str, name: str = "this notebook") -> str:
    """The students' version of a notebook's JSON text: solutions out, and all outputs and execution counts."""
    notebook = json.loads(text)
    for number, cell in enumerate(notebook["cells"], 1):
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        where = f"{name}, cell {number}"
        if cell["cell_type"] == "code":
            # Not by `strip`: a cell may hold magics, and a cell that raises is what an open task should do.
            source = _replace(source, blanks(source, where), _raise)
            cell["outputs"], cell["execution_count"] = [], None
        elif cell["cell_type"] == "markdown":
            found = blanks(source, where, markdown=True)
            source = _replace(
                source, found, lambda blank, _: f"{blank.indent}*{blank.message}. Write your answer here.*\n"
            )
        cell["source"] = source.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _replace(text: str, found: list[Blank], new: Callable[[Blank, str], str]) -> str:
    """The text with `new(blank, body)` in place of each solution and its markers."""
    lines = text.splitlines(keepends=True)
    for blank in reversed(found):
        lines[blank.begin - 1 : blank.end] = [new(blank, "".join(lines[blank.begin : blank.end - 1]))]
    return "".join(lines)


def _raise(blank: Blank, body: str) -> str:
    return f"{blank.indent}raise NotImplementedError({json.dumps(blank.message, ensure_ascii=False)})\n"


def _inside_function(tree: ast.Module, blank: Blank) -> bool:
    """Whether the innermost block around the blank is a function's."""
    inner: ast.AST = tree
    for node in ast.walk(tree):  # outer before inner
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node.lineno < blank.begin <= (node.end_lineno or 0):
            inner = node
    return isinstance(inner, _FUNCTIONS)


def _stubs(blank: Blank, body: str, name: str) -> str:
    """Functions and classes of a solution in a class body or at module level, with their bodies taken out."""
    nodes = ast.parse(textwrap.dedent(body)).body
    for node in nodes:
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            what = (
                f"{name}:{blank.begin + node.lineno}: a solution outside a function may hold functions and classes only"
            )
            raise LabError(f"{what}; taken out, this statement would be missing where the file is imported")
    if not nodes:
        raise LabError(f"{name}:{blank.begin}: this solution is empty")
    return textwrap.indent("\n\n".join(ast.unparse(_stub(node, blank)) for node in nodes) + "\n", blank.indent)


def _stub(node: Any, blank: Blank) -> ast.AST:
    """The node with its docstring alone; a function raises, and of a class the methods are such stubs."""
    doc = node.body[:1] if ast.get_docstring(node) is not None else []
    if isinstance(node, ast.ClassDef):
        kept: list[Any] = [_stub(inner, blank) for inner in node.body if isinstance(inner, _FUNCTIONS)]
        node.decorator_list = []
    else:
        kept = ast.parse(f"raise NotImplementedError({blank.message!r})").body
    node.body = [*doc, *kept] or [ast.Pass()]
    return node

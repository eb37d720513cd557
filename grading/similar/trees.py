"""Functions as sequences of syntax-tree nodes. A program of its own, on the standard library only: parsing what a
stranger wrote can exhaust stack and memory, and then it ends here and nowhere else.

    stdin    {"texts": {"collectives": "def ..."}, "functions": ["collectives.ring_all_gather", ...]}
    stdout   {"collectives.ring_all_gather": {"labels": ["For", "Name", ...], "lines": [12, 12, ...]}, ...}

A label tells what a node is and nothing of what a student called it: names, annotations, docstrings and comments are
left out; attributes, keyword arguments, operators and small numbers stay.
"""

import ast
import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

MEMORY, SECONDS = 1 << 30, 20
_SKIPPED = (ast.expr_context, ast.arguments, ast.arg, ast.type_ignore)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    query = json.load(sys.stdin)
    found: dict[str, Any] = {}
    for module, text in query["texts"].items():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in tree.body:
            name = f"{module}.{getattr(node, 'name', '')}"
            if name in query["functions"] and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                pairs = list(_labels(node))
                found[name] = {"labels": [label for label, _ in pairs], "lines": [line for _, line in pairs]}
    json.dump(found, sys.stdout)


def _labels(root: ast.AST) -> Iterator[tuple[str, int]]:
    """(label, line) of the nodes below a definition, in the order of the text."""
    stack: list[tuple[ast.AST, int]] = [(root, getattr(root, "lineno", 0))]
    while stack:
        node, line = stack.pop()
        if isinstance(node, _SKIPPED) or _is_docstring(node):
            continue
        line = getattr(node, "lineno", line)
        if node is not root:
            yield _label(node), line
        inside = []
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_comment", "bases", "keywords") and not (
                isinstance(node, ast.Call) and field == "keywords"
            ):
                continue
            children = value if isinstance(value, list) else [value]
            inside += [(child, line) for child in children if isinstance(child, ast.AST)]
        stack.extend(reversed(inside))


def _label(node: ast.AST) -> str:
    kind = type(node).__name__
    if isinstance(node, ast.Attribute):
        return f"{kind}:{node.attr}"
    if isinstance(node, ast.keyword):
        return f"{kind}:{node.arg}"
    if isinstance(node, ast.Constant):
        small = isinstance(node.value, int) and not isinstance(node.value, bool) and abs(node.value) < 10
        return f"{kind}:{node.value!r}" if small else f"{kind}:{type(node.value).__name__}"
    return kind


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


if __name__ == "__main__":
    main()

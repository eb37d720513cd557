"""The output of an automatic task's grade cell: points, every verdict, and why, as HTML.

Texts of a mark come from runs of a student's code. They are escaped, and stand in <pre>, which formula typesetting
leaves alone."""

from html import escape
from typing import Any

from grading.marking.inert import plain
from labkit.checks.outcome import number
from labkit.checks.verdict import FAULT, NOT_ATTEMPTED, PASSED

SIGNS = {PASSED: "\u2713", NOT_ATTEMPTED: "\u25cb", FAULT: "?"}  # the word stands beside it
COLOURS = {PASSED: "#1a7f37", NOT_ATTEMPTED: "#57606a", FAULT: "#8250df"}
_PRE = "margin:2px 0 6px 0;padding:4px 8px;background:#f6f8fa;border:0;white-space:pre-wrap;unicode-bidi:isolate"


def output(task: dict[str, Any] | None, remark: str = "") -> dict[str, Any]:
    """A display output for one task of a mark (`Mark.tasks`); None: the mark says nothing about it."""
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": _html(task, remark)}}


def headline(task: dict[str, Any]) -> str:
    """ "12 of 20 points: 3 of 5 cases passed"."""
    cases = task["cases"]
    passed = sum(case["verdict"] == PASSED for case in cases)
    return (
        f"{number(task['points'] or 0)} of {number(task['possible'])} points: {passed} of {len(cases)} "
        f"{'case' if len(cases) == 1 else 'cases'} passed"
    )


def _html(task: dict[str, Any] | None, remark: str) -> str:
    parts = [f'<p style="color:#b35900"><b>{escape(plain(remark))}</b></p>'] if remark else []
    if task is None:
        return "".join(parts)
    parts.append(f"<p><b>{escape(headline(task))}</b></p>")
    rows: list[str] = []
    shown: set[str] = set()
    for case in task["cases"]:
        verdict = case["verdict"]
        colour = COLOURS.get(verdict, "#cf222e")
        word = f"<b>{SIGNS.get(verdict, '&#x2717;')} {escape(plain(verdict))}</b>"
        rows.append(
            f'<tr><td style="color:{colour};white-space:nowrap;text-align:left">{word}</td>'
            f'<td style="text-align:left">{_line(case["behaviour"])}</td>'
            f'<td style="white-space:nowrap">{number(case["points"])} / {number(case["possible"])}</td></tr>'
        )
        if detail := _detail(case, shown):
            rows.append(f'<tr><td></td><td colspan="2" style="text-align:left">{detail}</td></tr>')
    return "".join(parts) + f'<table style="width:100%;margin-bottom:12px">{"".join(rows)}</table>'


def _detail(case: dict[str, Any], shown: set[str]) -> str:
    """Why a case is not passed. The same words stand once."""
    text, printed = plain(case.get("text", ""), 4_000).rstrip(), plain(case.get("printed", ""), 2_000).rstrip()
    if text and text in shown:
        text = "the same, word for word, as above"
    shown.add(text)
    parts = [f'<pre style="{_PRE}">{escape(text)}</pre>'] if text else []
    if printed:
        parts.append(f'<pre style="{_PRE};color:#57606a">it printed:\n{escape(printed)}</pre>')
    return "".join(parts)


def _line(text: str) -> str:
    return f'<code style="background:none;color:inherit">{escape(plain(text, 500))}</code>'

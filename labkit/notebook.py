"""What every week's notebook needs. Load it with `%load_ext labkit.notebook`; it adds one cell magic, `%%needs`.

%%needs 13.4        first line of a cell that runs what task 13.4 asks for. While the task is open, the cell says so
                    in one sentence, and "Run All" goes on below it. Any other error is shown as always.

guess = on_record("prediction 1", seconds=None)     a prediction, written before the run that tests it
show(picture)                                       a picture with its description for those who do not see it
"""

from __future__ import annotations

import base64
import html
import json
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PREDICTIONS = "predictions.jsonl"
_OPEN_TASK = re.compile(r"Task (\d+\.\d+)(?:: ([^\n'\"]+))?")


def load_ipython_extension(shell: Any) -> None:
    shell.register_magic_function(_needs, "cell", "needs")


def _needs(line: str, cell: str) -> None:
    """Run the cell; if it meets a task that is not written yet, say which."""
    from IPython import get_ipython

    shell = get_ipython()
    hidden = shell.showtraceback
    shell.showtraceback = lambda *args, **kwargs: None
    try:
        result = shell.run_cell(cell, store_history=False)
    finally:
        shell.showtraceback = hidden
    error = result.error_before_exec or result.error_in_exec
    if error is None:
        return
    found = open_task(error)
    if found is None:
        raise error
    print(waiting_sentence(*found))


def open_task(error: BaseException | None) -> tuple[str, str] | None:
    """(id, title) of the unwritten task that `error` came from, also where it was raised on a rank; else None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error)
        if isinstance(error, NotImplementedError) or "NotImplementedError: Task" in text:
            found = _OPEN_TASK.search(text)
            if found:
                return found[1], re.sub(r" \(\S+:\d+\).*", "", found[2] or "").strip()
        error = error.__cause__ or error.__context__
    return None


def waiting_sentence(task: str, title: str) -> str:
    """What a cell says while its task is open, with the file to write in."""
    from labkit.checks.tasks import find_weeks
    from labkit.errors import LabError

    try:
        week, entry = next((week, entry) for week in find_weeks() for entry in week.tasks if entry.id == task)
        files = " and ".join(f"{week.package}/{module.replace('.', '/')}.py" for module in entry.modules)
    except (LabError, StopIteration):
        files = ""
    named = f"task {task}, {title}" if title else f"task {task}"
    return f"This cell waits for {named}" + (f": write it in {files}." if files else ".")


def on_record(name: str, **values: Any) -> SimpleNamespace:
    """Put a prediction on record. Write yours in place of None, run the cell, and leave it as it is afterwards.

    A line with the date and what was written goes to predictions.jsonl beside the notebook (the kernel's folder), which
    is handed in: {"time", "prediction", and the values}. Nothing is taken back there; a repeated one adds no line.

    Returns the values as attributes; None where nothing was written."""
    missing = [key for key, value in values.items() if value is None]
    given = {key: value for key, value in values.items() if value is not None}
    if missing:
        print(
            f"{name}: still open: {', '.join(missing)}. Write {_asked(missing)} in place of None and run this cell "
            "again before you go on: a guess counts, a blank does not."
        )
    if given:
        kept = _keep(name, given)
        print(f"{name} is on record{kept}: {', '.join(f'{key} = {value!r}' for key, value in given.items())}.")
    return SimpleNamespace(**values)


def _asked(keys: list[str]) -> str:
    """What kind of answer these names ask for: "comes_back" is a question that has yes or no for an answer."""
    return "True or False" if all(key.endswith("comes_back") for key in keys) else "a number"


def _keep(name: str, given: dict[str, Any]) -> str:
    """Append the prediction to the file, unless its last line for this name says the same; returns words on where."""
    line = {
        "prediction": name,
        **{key: value if isinstance(value, (bool, int, float, str)) else repr(value) for key, value in given.items()},
    }
    path = Path.cwd() / PREDICTIONS
    try:
        before = [json.loads(old) for old in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        same: dict[str, Any] = next((old for old in reversed(before) if old.get("prediction") == name), {})
        if {key: value for key, value in same.items() if key != "time"} != line:
            with path.open("a", encoding="utf-8") as file:
                now = datetime.now().astimezone().isoformat(timespec="seconds")
                file.write(json.dumps({"time": now, **line}) + "\n")
    except (OSError, ValueError, AttributeError):
        return f" (here only: {PREDICTIONS} cannot be written or read)"
    return f" ({PREDICTIONS})"


def show(picture: Any) -> None:
    """Show a picture (`png` file, `alt` text, `note`) under the cell."""
    from IPython.display import HTML, display

    data = base64.b64encode(picture.png.read_bytes()).decode()
    display(
        HTML(
            f'<figure style="margin:0"><img style="max-width:740px;width:100%" alt="{html.escape(picture.alt)}" '
            f'src="data:image/png;base64,{data}"><figcaption style="max-width:740px">{html.escape(picture.note)}'
            f"</figcaption></figure>"
        )
    )

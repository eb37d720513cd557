"""What every week's notebook needs. Load it with `%load_ext labkit.notebook`; it adds one cell magic, `%%needs`.

guess_2 = on_record("prediction 2", seconds=None)   a prediction, written in place of None before the run that tests it,
                    kept with its time in predictions.jsonl. SKIP in place of a number says: none from me
%%needs 13.4        first line of a cell that runs what task 13.4 asks for. While the task is open, the cell says so
                    in one sentence, and "Run All" goes on below it. Any other error is shown as always.
%%needs guess_2 13.4    ... and that waits until prediction 2 is on record, or skipped. The time of the first run goes
                    to predictions.jsonl too.
guess_2.beside("seconds")   "   (your guess: 3)", for a printed line; "" without a guess
show(picture)       a picture with its description for those who do not see it

Modules of the weeks are imported anew when they were saved (labkit.reload), and those beside the notebook come first.
LABKIT_GUESSES=skip, for a notebook that a program executes: open predictions count as skipped, nothing is written.
"""

import base64
import html
import json
import os
import re
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labkit.errors import LabError
from labkit.reload import Reloader

PREDICTIONS = "predictions.jsonl"
SKIP = "skip"
_OPEN_TASK = re.compile(r"Task ((?:\d+|C)\.\d+)(?:: ([^\n'\"]+))?")


def load_ipython_extension(shell: Any) -> None:
    shell.register_magic_function(_needs, "cell", "needs")
    course = Path.cwd().parent
    if Path("tasks.toml").is_file() and (course / "labkit").is_dir():
        # The modules beside this notebook are those that it runs, also where another copy of the course is installed.
        sys.path.insert(0, str(course))
        reloader = Reloader(course, shell.user_ns)
        shell.events.register("pre_run_cell", reloader.before)
        reloader.before()
        here = Path(__file__).resolve().parent
        if here != (course / "labkit").resolve():
            print(f"labkit comes from {here.parent}, not from this folder: `make setup` in {course} fixes it.")


def _needs(line: str, cell: str) -> None:
    """Run the cell once its guesses are on record; if it meets a task that is not written yet, say which."""
    from IPython import get_ipython

    shell = get_ipython()
    guesses = {name: shell.user_ns.get(name) for name in line.split() if name.isidentifier()}
    for name, guess in guesses.items():
        if not isinstance(guess, Guess):
            print(f"This cell waits for your prediction: run the cell above that makes {name}.")
            return
        if guess.open:
            print(
                f"This cell waits for {guess.name}: write {_kinds(guess.open)} in place of None in its cell, run that"
            )
            print("cell, then this one. A wrong guess costs nothing. To go on without one, write SKIP.")
            return
    hidden = shell.showtraceback
    shell.showtraceback = lambda *args, **kwargs: None
    try:
        result = shell.run_cell(cell, store_history=False)
    finally:
        shell.showtraceback = hidden
    error = result.error_before_exec or result.error_in_exec
    if error is None:
        for guess in guesses.values():
            guess.ran()
        return
    if (found := open_task(error)) is None:
        raise error
    print(waiting_sentence(*found))


def open_task(error: BaseException | None) -> tuple[str, str] | None:
    """(id, title) of the unwritten task that `error` came from, also where it was raised on a rank; else None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error)
        found = _OPEN_TASK.search(text)
        if found and (isinstance(error, NotImplementedError) or "NotImplementedError: Task" in text):
            return found[1], re.sub(r" \(\S+:\d+\).*", "", found[2] or "").strip()
        error = error.__cause__ or error.__context__
    return None


def waiting_sentence(task: str, title: str) -> str:
    """What a cell says while its task is open, with the file to write in."""
    from labkit.checks.tasks import find_weeks

    try:
        week, entry = next((week, entry) for week in find_weeks() for entry in week.tasks if entry.id == task)
        files = " and ".join(f"{week.package}/{module.replace('.', '/')}.py" for module in entry.modules)
    except (LabError, StopIteration):
        files = ""
    named = f"task {task}, {title}" if title else f"task {task}"
    return f"This cell waits for {named}" + (f": write it in {files}." if files else ".")


class Guess(SimpleNamespace):
    """A prediction. Its values are attributes: what was written, or None where nothing was, or SKIP."""

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        super().__init__(**{key: None if value == SKIP else value for key, value in values.items()})
        self.name = name
        self.open = [key for key, value in values.items() if value is None and not _nobody_there()]

    def beside(self, key: str) -> str:
        """The guess, to stand behind what was measured."""
        value = getattr(self, key)
        return "" if value is None else f"   (your guess: {value})"

    def ran(self) -> None:
        """The cell that tests it has run. The first time is kept."""
        _keep("ran", {"ran": self.name})


def on_record(name: str, **values: Any) -> Guess:
    """Put a prediction on record: yours in place of None, or SKIP; it stays as it is afterwards.

    Lines go to predictions.jsonl beside the notebook, which is submitted: {"time", "prediction", and the values} for
    each, {"time", "ran": its name} for the first run of the cell that tests it. A changed prediction adds a line.
    """
    guess = Guess(name, values)
    given = {key: value for key, value in values.items() if value is not None}
    if guess.open:
        print(
            f"{name}: still open: {', '.join(guess.open)}. Write {_kinds(guess.open)} in place of None and run this "
            "cell again before you go on: a guess counts, a blank does not."
        )
    if given:
        plain = {key: value if isinstance(value, int | float | str) else repr(value) for key, value in given.items()}
        added = _keep("prediction", {"prediction": name, **plain})
        where = PREDICTIONS if added is not None else f"here only: {PREDICTIONS} cannot be written or read"
        after = " Its cell had already run: the times tell." if added and {"ran": name} in (_read() or []) else ""
        said = ", ".join(f"{key} = {value!r}" for key, value in given.items())
        print(f"{name} is on record ({where}): {said}.{after}")
    return guess


def _nobody_there() -> bool:
    return os.environ.get("LABKIT_GUESSES") == SKIP


def _kinds(keys: list[str]) -> str:
    """The kinds of answers to write for these names: "comes_back" is a question of yes or no."""
    kinds = {"True or False" if key.endswith("comes_back") else "a number" for key in keys}
    return " and ".join(sorted(kinds))


def _keep(kind: str, line: dict[str, Any]) -> bool | None:
    """Append a line with its time, unless the last one of this name says the same: was it? None: it cannot be."""
    if _nobody_there():
        return False
    before = _read()
    if before is None:
        return None
    if [old for old in before if old.get(kind) == line[kind]][-1:] == [line]:
        return False
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    try:
        with Path(PREDICTIONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": now, **line}) + "\n")
    except OSError:
        return None
    return True


def _read() -> list[dict[str, Any]] | None:
    """The lines of the file, without their times; None if it cannot be read, or holds something else."""
    path = Path(PREDICTIONS)
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        return [{key: value for key, value in line.items() if key != "time"} for line in lines]
    except (OSError, ValueError, AttributeError):
        return None


def show(picture: Any) -> None:
    """Show a picture (`png` file, `alt` text, `note`) under the cell."""
    from IPython.display import HTML, display

    data = base64.b64encode(picture.png.read_bytes()).decode()
    alt, note = html.escape(picture.alt), html.escape(picture.note)
    shown = f'<img style="max-width:740px;width:100%" alt="{alt}" src="data:image/png;base64,{data}">'
    note = f'<figcaption style="max-width:740px">{note}</figcaption>'
    display(HTML(f'<figure style="margin:0">{shown}{note}</figure>'))

"""The pictures of a comparison or of one run, each with its alt text; None where there is nothing to draw."""

from pathlib import Path
from typing import Any

from labkit.compare.arms import answers, arm_rows, measured_on
from labkit.compare.figures import answer, loss, rates, rounding
from labkit.compare.terminal import parameters
from labkit.record.plotting import Picture, styles
from labkit.record.read import RunData
from labkit.record.schema import Verdict


def draw_all(data: RunData, folder: Path | None = None, trouble: list[str] | None = None) -> list[Picture]:
    """Draw every picture that the record has data for into figures/ of the run (or `folder`), in reading order.

    With a list `trouble` a picture that fails is left out and named there. OSError (a full disk) is raised always.
    """
    folder = Path(folder or data.path / "figures")
    folder.mkdir(parents=True, exist_ok=True)
    every, record = arm_rows(data), data.comparison
    timed = list(record.results.speed.arms.values()) if record.results.speed else []
    arms = {name: arm for name, arm in every.items() if not arm.of}  # of an arm trained several times, the first run
    probed = {name: arm for name, arm in arms.items() if arm.scales()}
    look_of = styles({name: arm.role for name, arm in arms.items()})
    todo: list[tuple[Any, ...]] = []
    if data.is_comparison:
        _, *counts = measured_on(data, every)
        sizes = tuple(parameters(count).replace(" parameters", "") if count else "" for count in counts)
        todo.append(("the answer", answer.answer, answers(every), folder, "answer", "", record.config.yardstick, sizes))
    todo.append(("the losses", loss.losses, arms, folder))
    todo.append(("the milliseconds", rates.milliseconds, timed, folder))
    if data.is_comparison:
        todo.append(("the paired gap", loss.gap, every, record.results.verdict or Verdict(), folder))
    todo.append(("SQNR", rounding.sqnr, probed, look_of, folder))
    pictures: list[Picture | None] = []
    for what, draw, *given in todo:
        try:
            pictures.append(draw(*given))
        except Exception as error:
            if trouble is None or isinstance(error, OSError):
                raise
            trouble.append(f"The picture of {what} could not be drawn ({type(error).__name__}: {error}).")
    return [picture for picture in pictures if picture is not None]

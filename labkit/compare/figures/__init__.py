"""The pictures of a comparison or of one run, each with its alt text; None where there is nothing to draw."""

from functools import partial
from pathlib import Path

from labkit.compare.arms import answers, arm_rows, measured_on
from labkit.compare.figures import answer, loss, rates, rounding
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
    arms = {name: arm for name, arm in every.items() if not arm.of}  # of an arm trained several times, the first run
    look = styles({name: arm.role for name, arm in arms.items()})
    sizes = [measured_on(data, every)[1].get(part, "").removesuffix(" parameters") for part in ("speed", "losses")]
    ready = {
        "the answer": partial(answer.answer, answers(every), baseline=record.config.baseline_format, sizes=sizes),
        "the losses": partial(loss.losses, arms),
        "the milliseconds": partial(rates.milliseconds, record.results.timed.values()),
        "the paired gap": partial(loss.gap, every, record.results.verdict or Verdict()),
        "SQNR": partial(rounding.sqnr, {name: arm for name, arm in arms.items() if arm.scales()}, look),
    }
    pictures: list[Picture | None] = []
    for what, draw in ready.items():
        try:
            pictures.append(draw(folder=folder))
        except Exception as error:
            if trouble is None or isinstance(error, OSError):
                raise
            trouble.append(f"The picture of {what} could not be drawn ({type(error).__name__}: {error}).")
    return [picture for picture in pictures if picture is not None]

"""A gate between two arms: the second is trained only if the first has passed.

FP8 parameters build on FP8 products: whoever starts with both, and sees the loss drift, does not know which of the two
did it. So the recipe has two stages (labkit/compare/presets/two-stage.toml):

    stage one    block-scaled FP8 products, parameters in high precision: the baseline of stage two
    the gate     stage one's paired verdict (labkit.compare.verdict), over the arms that are finished: it must be in the
                 band, in a comparison that could have said no (its broken arm was rejected, its twin gives a band)
    stage two    the same with FP8 parameters, gathered as FP8

An arm whose gate is closed is not trained, and the report says why. The gate is asked when the arm is due, from the
records alone, so it is the same in every call of the command.
"""

from __future__ import annotations

from pathlib import Path

from labkit.compare.arms import Preset
from labkit.compare.verdict import judge
from labkit.errors import LabError
from labkit.record.read import read_run


def gate_closed(preset: Preset, arm: str, out: Path) -> str:
    """Why `arm` of the comparison in `out` may not be trained yet, as a sentence without its end; "" if it may."""
    gate = preset.arms[arm].gate
    if not gate:
        return ""
    from labkit.compare.summary import heldout

    deciding = [name for name, about in preset.arms.items() if about.role in ("baseline", "twin", "broken")] + [gate]
    finished = {}
    for name in deciding:
        try:
            run = read_run(out / "arms" / name)
        except LabError:
            continue
        if run.status == "finished":
            finished[name] = heldout(run)
    if gate not in finished:
        return (
            f"its gate, {preset.arms[gate].label}, has no finished result yet: train that arm first "
            f"(`--arms {','.join(deciding)}`)"
        )
    verdict = judge(
        finished,
        {name: preset.arms[name].role for name in deciding if name in finished},
        {name: preset.arms[name].label for name in deciding},
    )
    if verdict["word"] == "pass" and verdict["arms"][gate]["word"] == "inside":
        return ""
    said = verdict["arms"].get(gate, {}).get("sentence", "")
    return (
        f"its gate, {preset.arms[gate].label}, is closed. {verdict['sentence']}"
        + (f" {said}" if said and verdict["word"] != "fail" else "")
    ).rstrip(".")

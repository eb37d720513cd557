"""One self-contained HTML page from a run folder, in whatever state: no script, no external request, light and dark."""

import base64
import json
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from labkit.compare import table
from labkit.compare.arms import Arm, answers, arm_rows, efficiency_of, is_spared, measured_on, still_needed
from labkit.compare.budget import price_of, spent
from labkit.compare.speed_verdict import cost_sentence
from labkit.errors import LabError
from labkit.record.files import explained, replace_file
from labkit.record.kernels import CLASSES
from labkit.record.measure import Efficiency
from labkit.record.plotting import Picture
from labkit.record.read import RunData, read_run
from labkit.record.schema import RunFile, TrainRun, World
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig

HERE = Path(__file__).parent
# verdict -> sign, word
WORDS = {
    "pass": ("\N{CHECK MARK}", "Pass"),
    "fail": ("\N{BALLOT X}", "Fail"),
    "undecided": ("?", "Undecided"),
    "no-power": ("\N{WARNING SIGN}", "No power"),
    "incomplete": ("\N{HORIZONTAL ELLIPSIS}", "Incomplete"),
}
# verdict on speed -> word, tone
SPEED_WORDS = {
    "faster": ("Faster", "pass"),
    "slower": ("Slower", "fail"),
    "same": ("No difference", "no-power"),
    "incomplete": ("Incomplete", "incomplete"),
}
MFU = "causal FLOPs / bf16 peak"  # what stands first; the page folds the others away
CATEGORIES = ("weights", "gradients", "optimizer", "activations and the rest", "peak")
UNFINISHED = {
    "running": "The run was still going on when this page was drawn.",
    "paused": "The run is paused, as its budget or somebody asked; the same command goes on with it.",
    "interrupted": "The run was interrupted and did not reach its end; the same command resumes it.",
    "failed": "The run failed; the events say why.",
}
ARM_UNFINISHED = {
    "skipped": "was skipped",
    "failed": "failed after {far}",
    "pending": "has not started",
    "running": "was still training, {far} done",
    "paused": "is paused, {far} done",
    "interrupted": "was interrupted, {far} done",
}
CPU = "This ran on a CPU. Its tokens/s and memory tell what the run cost here, and nothing about a GPU."
CPU_OTHER = (
    "This ran on a CPU. The operands of every product were really rounded, so losses, gaps and SQNR are {form}'s "
    "numerics, as far as a model of this size shows them. Tokens/s and memory tell what this test cost here, and "
    "nothing about a GPU."
)
CPU_FP8 = (
    "This ran on a CPU. Every operand was really rounded to its format, so losses, gaps, scales and SQNR are FP8's "
    "numerics, as far as a model of this size shows them. It says nothing about FP8's speed: no CPU multiplies in FP8, "
    "the products are computed in a wider format after the rounding, and that makes the FP8 arms slower here. Read "
    "tokens/s and memory as what this test cost, not as a comparison."
)
GPU = (
    "Speed was measured on {gpu}, at this model size and batch. {form} gains with the size of the matrix products and "
    "can lose on small ones, so the ratio does not carry over to other shapes or GPUs."
)
PASSED = "A pass means that in this run no difference larger than the band was found"
SAME = "A recipe is the same when its interval lies within what is accepted"
BEYOND = "that does not show that there is no difference in a longer run, a larger model or other data."
SEEN = {"fp8_gemm": "FP8 products", "bf16_gemm": "BF16 products", "quantize": "casts"}


def report(run_path: str | os.PathLike) -> Path:
    """Draw figures/ and write report.html of the run; returns its path. LabError: no run, or it cannot be written."""
    data = read_run(run_path)
    target = data.path / "report.html"
    from labkit.compare.figures import draw_all  # matplotlib: only when a report is drawn

    trouble: list[str] = []
    with explained(target, stop="."):
        pictures = draw_all(data, trouble=trouble)
        replace_file(target, _render(data, pictures, trouble))
    return target


def _render(data: RunData, pictures: list[Picture], trouble: list[str]) -> str:
    from jinja2 import Environment, FileSystemLoader  # only when a report is drawn

    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(FILTERS)
    single, record, every = not data.is_comparison, data.comparison, arm_rows(data)
    form, baseline = record.config.format, record.config.baseline_format
    results, verdict = record.results, record.results.verdict
    arms = {name: arm for name, arm in every.items() if not arm.of}  # further runs stand in their arm's line
    both = [] if single else answers(every)
    tone = verdict.word if verdict and verdict.word in WORDS else "incomplete"
    default = f"Training run: {arms['run'].label}" if single else "Comparison of number formats"
    return environment.get_template("report.html.j2").render(
        css=(HERE / "report.css").read_text(encoding="utf-8"),
        title=record.config.title or record.title or default,
        run=record,
        data=data,
        on_gpu=_on_gpu(data),
        measured_on=_measured_on(data, arms),
        single=single,
        answers=table.as_html(table.of_answers(both, baseline), both) if both else "",
        recommended=recommended(both, form, baseline),
        assumed=table.assumed(both, baseline),
        spent="" if single else spent(results.calls),
        one_run=not single and bool(verdict and verdict.band) and not record.config.repeat,
        arms=arms,
        losses=table.as_html(table.on_page_losses([*arms.values()], _on_gpu(data)), arms.values()),
        tone=tone,
        words=WORDS[tone],
        efficiencies=[line for arm in arms.values() if (line := _efficiency(arm))],
        missing=missing(data, every, trouble),
        speed=_speed(data, [every[name] for name in results.timed]) if results.speed else {},
        calls=[call for call in results.calls if call.items or not call.ended],
        pictures=[(picture, base64.b64encode(picture.svg.read_bytes()).decode()) for picture in pictures],
        limits=limits(data, arms),
        events=_events(every, data),
        conversions=[a for a in arms.values() if a.conversion.converted or a.conversion.skipped or a.evidence],
        environment=_environment(record, next((arm.training for arm in data.arms.values()), TrainRun())),
        config=json.dumps(data.config, indent=2, ensure_ascii=False),
    )


# ---- what the page says in words


def recommended(rows: Sequence[Arm], form: str, baseline: str) -> str:
    """Which recipe to take: the fastest whose loss is the same, if it is faster; "" if speed or losses are not known."""
    timed = {arm.name: arm.times for arm in rows if arm.role == "candidate" and arm.times}
    if not timed or not any(arm.word for arm in rows if arm.role == "candidate"):
        return ""
    faster = [arm for arm in rows if timed.get(arm.name, 0.0) > 1]
    sound = [arm for arm in faster if arm.word in ("same", "in the band")]
    if not sound:
        none_is = "No recipe that is faster has its loss: none was found the same."
        return f"Recommended here: {baseline}. {none_is if faster else f'No {form} recipe is faster.'}"
    best = max(sound, key=lambda arm: timed[arm.name])
    word, interval = f"{best.word} in one run" if best.one_run else best.word, table.gap_interval(best)
    gap = f", the loss {word} ({interval})" if interval else ""
    equal = f", {table.at_equal_loss(best.at_equal_loss)} at equal loss" if best.at_equal_loss else ""
    others = [arm for arm in faster if timed[arm.name] > timed[best.name]]
    why = "; ".join(f"{a.timed_label} is faster ({a.times:.2f}), its loss {a.word or 'not judged'}" for a in others)
    advice = f"Recommended here: {best.timed_label}, {best.times:.2f} times {baseline}'s speed{gap}{equal}."
    return advice + (f" {why}." if why else "")


def missing(data: RunData, arms: dict[str, Arm], trouble: Sequence[str] = ()) -> list[str]:
    """What a reader would look for and this record does not have, one sentence each."""
    out, single, record = [], not data.is_comparison, data.comparison
    if data.status != "finished":
        out.append(UNFINISHED.get(data.status, f"The run's status is {data.status}."))
    calls, verdict = record.results.calls, record.results.verdict
    needed = {item.arm for item in still_needed(calls[-1], arms)} if calls and calls[-1].ended else set(arms)
    for arm in arms.values():
        if (arm.status == "pending" and arm.name not in needed) or (arm.status != "finished" and is_spared(arm, arms)):
            continue  # nobody requested it, or it is not needed
        far = f"{arm.steps} of {arm.planned} steps" if arm.planned else f"{arm.steps} steps"
        who = "The record" if single else arm.label
        if not single and arm.status != "finished":
            what = ARM_UNFINISHED.get(arm.status, "is {status}").format(far=far, status=arm.status)
            out.append(f"{arm.label} {what}{': ' + arm.note if arm.note else ''}".rstrip(".") + ".")
        elif arm.planned and arm.steps < arm.planned and not (arm.data and arm.data.training.results.stopped):
            out.append(f"{who} holds {far}.")
        if arm.data and (cut := arm.data.truncated):
            lines = f"{cut} line{'s' if cut > 1 else ''}"
            out.append(f"{who}: {lines} of the record could not be read (cut off when the run was killed).")
        if arm.data and arm.steps and arm.val_loss is None:
            out.append(f"{who} has no held-out loss.")
    if not single and not verdict:
        out.append("There is no verdict: it is made when the arms are done.")
    if verdict and not any(arm.role == "broken" and arm.steps for arm in arms.values()):
        out.append("No broken arm ran, so nothing shows that this comparison could have failed.")
    if arms and not any(arm.scales() for arm in arms.values()):
        out.append(f"No scales were recorded (probe_every is 0, or no {record.config.format} arm ran).")
    return [*out, *trouble]


def limits(data: RunData, arms: dict[str, Arm]) -> list[str]:
    """What this machine and this run can and cannot show: paragraphs."""
    out, form = [], data.comparison.config.format
    if not _on_gpu(data):
        compared = data.is_comparison or any(arm.converted for arm in arms.values())
        out.append((CPU_FP8 if form == "FP8" else CPU_OTHER.format(form=form)) if compared else CPU)
    elif data.is_comparison:
        out.append(GPU.format(gpu=_gpu_name(data) or "this GPU", form=form))
    if data.is_comparison:
        tokens = max((arm.tokens or 0 for arm in arms.values()), default=0)
        seen = f"Each arm saw {tokens:,.0f} tokens at most. " if tokens else ""
        out.append(f"{seen}{SAME if data.comparison.config.repeat else PASSED}; {BEYOND}")
    return out


def _efficiency(arm: Arm) -> tuple[str, Efficiency] | None:
    """(label, FLOP/s and MFU) of an arm on a known GPU, by both conventions and against both peaks; None elsewhere."""
    if arm.data is None or not arm.speed.tokens_per_s or not _on_gpu(arm.data):
        return None
    try:
        config = strict_validate(TrainConfig, arm.data.config, "the record")
    except LabError:
        return None
    ranks = (arm.data.training.world or World()).size or 1
    return arm.label, efficiency_of(config, arm.speed.tokens_per_s, _gpu_name(arm.data), ranks)


def _speed(data: RunData, timed: list[Arm]) -> dict[str, Any]:
    """What the template's speed section shows."""
    results = data.comparison.results
    assert results.speed is not None
    rows, verdict, price = results.speed.arms, results.speed.verdict, price_of(results.calls)
    word, tone = SPEED_WORDS.get(verdict.word, SPEED_WORDS["incomplete"])
    shares = next((list(row.mfu) for row in rows.values() if row.mfu), [])
    share = next((key for key in shares if key.startswith(MFU)), "")
    columns = table.on_page_speed(timed, data.comparison.config.baseline_format, price, share)
    shown: dict[str, Any] = {"word": word, "tone": tone, "verdict": verdict, "cost": cost_sentence(rows, price)}
    shown |= {"rows": rows, "table": table.as_html(columns, timed), "share": share, "shares": shares}
    shown |= {"categories": CATEGORIES, "classes": CLASSES, "seen": SEEN, "unit": table.PER_THOUSAND}
    return shown | {
        "used": any(row.device_used_bytes for row in rows.values()),
        "metered": [row for row in rows.values() if row.meter],
        "profiled": [row for row in rows.values() if row.kernels and row.kernels.span_ms],
        "note": next((row.mfu_note for row in rows.values()), ""),
    }


def _events(arms: dict[str, Arm], data: RunData) -> list[dict]:
    """Events of all arms in time order; a row of like events of one arm (a hundred skipped steps) becomes one line."""
    every = [(event, "") for event in data.happened]
    if data.is_comparison:
        every += [(event, arm.label) for arm in arms.values() if arm.data for event in arm.data.happened]
    every.sort(key=lambda pair: pair[0].time)
    out: list[dict] = []
    for (label, kind, message), like in groupby(every, key=lambda pair: (pair[1], pair[0].kind, pair[0].message)):
        events = [event for event, _ in like]
        time = events[0].time[:19].replace("T", " ")
        steps = {"first": events[0].step, "last": events[-1].step, "count": len(events)}
        out.append({"time": time, "arm": label, "kind": kind, "message": message, **steps})
    return out


def _environment(run: RunFile, first: TrainRun) -> dict[str, str]:
    """When, versions, hardware, seeds, corpus, ranks. first: the first arm, which fills in what a comparison lacks."""
    hardware, world, count = (
        run.hardware or first.hardware,
        run.world or first.world,
        run.parameters or first.parameters,
    )
    rows = {what: _time(getattr(run, what)) or "not recorded" for what in ("started", "finished")}
    rows["ranks"] = _flat(world.model_dump(exclude_none=True)) if world else ""
    if hardware:
        cpu, named = hardware.cpu, hardware.cpu.model or hardware.cpu.architecture
        rows["processor"] = f"{named}, {cpu.cores} cores, {cpu.usable_threads} threads usable" if named else ""
        rows["memory"] = f"{hardware.memory_bytes / 2**30:.1f} GiB" if hardware.memory_bytes else ""
        names = [f"{gpu.name} (driver {gpu.driver}, compute capability {gpu.capability})" for gpu in hardware.gpus]
        rows["GPU"] = "; ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names)) or "none"
        rows["system"] = hardware.os or ""
    rows |= {"versions": _flat(run.versions), "seeds": _flat(run.seeds or {})}
    rows |= {"corpus": _flat(run.corpus or first.corpus), "parameters": f"{count:,.0f}" if count else ""}
    return {what: text for what, text in rows.items() if text or what == "versions"}


# ---- small parts


def _on_gpu(data: RunData) -> bool:
    """Did the ranks compute on a GPU? From what the run says, else from whether the machine has one."""
    for run in (data.training, *(arm.training for arm in data.arms.values())):
        if device := run.config.device or run.device or (run.world and run.world.device):
            return device.startswith("cuda")
    return _gpu_name(data) is not None


def _gpu_name(data: RunData) -> str | None:
    hardware = data.training.hardware
    return hardware.gpus[0].name if hardware and hardware.gpus else None


def _measured_on(data: RunData, arms: dict[str, Arm]) -> str:
    """The machine and the models, for the top of the page: "1 x NVIDIA H200. Losses of a model of 124 M parameters"."""
    ranks, sizes = measured_on(data, arms)
    machine = f"{ranks} x {_gpu_name(data)}" if ranks and _on_gpu(data) and _gpu_name(data) else ""
    models = "; ".join(f"{what} of a model of {size}" for what, size in sizes.items())
    return ". ".join(filter(None, (machine, models[:1].upper() + models[1:])))


def _time(value: str | None) -> str:
    return f"{value[:16].replace('T', ' ')} UTC" if value and value.endswith("Z") else value or ""


def _flat(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return ", ".join(f"{k} ({_flat(v)})" if isinstance(v, dict) else f"{k} {_flat(v)}" for k, v in value.items())


def _rounded(value: float, unit: float = 1) -> str:
    """With one decimal; two digits where that would be nothing, as on a CPU."""
    return table.number(value / unit, "{:.2g}" if value / unit < 1 else "{:,.1f}")


def _or_dash(write: Any, unit: float = 1) -> Any:
    """A filter for numbers over `unit`, in a form or by a function; a dash for None."""
    if isinstance(write, str):
        return lambda value: table.DASH if value is None else table.number(value / unit, write)
    return lambda value, *more: table.DASH if value is None else write(value, *more)


FILTERS = {
    "loss": _or_dash("{:.4f}"),
    "count": _or_dash("{:,.0f}"),
    "gib": _or_dash(table.IN_GIB, 2**30),
    "db": _or_dash(table.DECIBELS),
    "minutes": _or_dash("{:.1f}", 60),
    "one": _or_dash("{:,.1f}"),
    "two": _or_dash("{:,.2f}"),
    "percent": _or_dash(table.percent),
    "rounded": _or_dash(_rounded),
    "breakable": table.breakable,
    "plain": _flat,
    "time": _time,
}

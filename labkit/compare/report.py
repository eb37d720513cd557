"""One self-contained HTML page from a run folder: no script, no external request, readable on paper and in the dark.

Only the folder is read, in whatever state it is: a run that was killed gets a page that says what is missing. All text
of the record is escaped, and the page forbids scripts and requests besides. What stands where, and how a number is
written, is the template's (report.html.j2); here are its facts and sentences.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from labkit.compare import answer
from labkit.compare.answer import recommended, repeated, rows_of, spent
from labkit.compare.results import ArmResult, arms_of, formats_of, found_run, price_of, timed_of, verdict_of
from labkit.compare.speed_verdict import PER_THOUSAND, cost_sentence, efficiency_of, per_thousand
from labkit.compare.terminal import parameters
from labkit.errors import LabError
from labkit.record.files import explained, replace_file
from labkit.record.kernels import CLASSES
from labkit.record.plotting import Picture
from labkit.record.read import RunData, as_dict, as_number, read_run
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
MFU = "causal FLOPs / bf16 peak"  # what is told first; the page folds the others away
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
GAP_WORDS = {
    "reference": "gives the band",
    "inside": "inside the band",
    "outside": "outside the band",
    "undecided": "undecided: beyond the band, not told from rounding",
}
BROKEN_WORDS = {
    "outside": "outside: rejected, as it must be",
    "inside": "inside: NOT rejected",
    "undecided": "undecided: NOT rejected",
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
SEEN = {"fp8_gemm": "FP8 products", "bf16_gemm": "BF16 products", "quantize": "casts"}
# Keys of run.json that have their own place on the page.
TOLD = "schema kind status command config seeds versions hardware started finished results conversion evidence"
TOLD += " corpus label role arm call"


def report(run_path: str | os.PathLike) -> Path:
    """Draw figures/ and write report.html of the run in `run_path`; returns the page's path. LabError: no run there, or
    the folder cannot be written."""
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
    run, every, verdict, single = data.run, arms_of(data), verdict_of(data), not data.is_comparison
    arms = {name: arm for name, arm in every.items() if not arm.of}  # further runs stand in their arm's line
    rows = [] if single else rows_of(data)
    form, yardstick = formats_of(data)
    tone = str(verdict.get("word")) if verdict.get("word") in WORDS else "incomplete"
    drawn = [(picture, base64.b64encode(picture.svg.read_bytes()).decode()) for picture in pictures]
    own_title = data.config.get("title") or run.get("title")
    return environment.get_template("report.html.j2").render(
        css=(HERE / "report.css").read_text(encoding="utf-8"),
        title=own_title or (f"Training run: {arms['run'].label}" if single else "Comparison of number formats"),
        run=run,
        status=data.status,
        on_gpu=_on_gpu(data),
        measured_on=_measured_on(data, arms),
        single=single,
        answers=answer.table(rows, yardstick),
        recommended=recommended(rows, form, yardstick),
        form=form,
        yardstick=yardstick,
        spent="" if single else spent(data),
        one_run=not single and bool(verdict.get("band")) and not repeated(data),
        arms=arms,
        verdict=verdict,
        tone=tone,
        words=WORDS[tone],
        gap_words={name: _gap_word(arm) for name, arm in arms.items()},
        speedups=_speedups(arms) if _on_gpu(data) else {},
        efficiencies=[line for arm in arms.values() if (line := _efficiency(arm))],
        missing=missing(data, every, trouble),
        speed=_speed(data),
        calls=_calls(data),
        pictures=[shown for shown in drawn if shown[0].name != "answer"],
        seen_first=next((shown for shown in drawn if shown[0].name == "answer"), None),
        limits=limits(data, arms),
        events=_events(every, data),
        conversions=[arm for arm in arms.values() if arm.conversion or arm.evidence],
        environment=_environment(data),
        config=_pretty(run.get("config")),
        more=_pretty({k: v for k, v in run.items() if k not in TOLD.split()}),
    )


# ---- what the page says in words


def missing(data: RunData, arms: dict[str, ArmResult], trouble: Sequence[str] = ()) -> list[str]:
    """What a reader would look for and this record does not have, one sentence each."""
    out, single = [], not data.is_comparison
    if data.status != "finished":
        out.append(UNFINISHED.get(data.status, f"The run's status is {data.status}."))
    for arm in arms.values():
        far = f"{arm.steps} of {arm.planned} steps" if arm.planned else f"{arm.steps} steps"
        who = "The record" if single else arm.label
        if not single and arm.status != "finished":
            told = ARM_UNFINISHED.get(arm.status, "is {status}").format(far=far, status=arm.status)
            out.append(f"{arm.label} {told}{': ' + arm.note if arm.note else ''}".rstrip(".") + ".")
        elif arm.planned and arm.steps < arm.planned and not (arm.data and arm.data.results.get("stopped")):
            out.append(f"{who} holds {far}.")
        if arm.data and (cut := arm.data.truncated):
            lines = f"{cut} line{'s' if cut > 1 else ''}"
            out.append(f"{who}: {lines} of the record could not be read (cut off when the run was killed).")
        if arm.data and arm.steps and arm.heldout is None:
            out.append(f"{who} has no held-out loss.")
    if not single and not verdict_of(data):
        out.append("There is no verdict: it is made when the arms are done.")
    if verdict_of(data) and not any(arm.role == "broken" and arm.steps for arm in arms.values()):
        out.append("No broken arm ran, so nothing shows that this comparison could have failed.")
    if arms and not any(arm.scales() for arm in arms.values()):
        out.append(f"No scales were recorded (probe_every is 0, or no {formats_of(data)[0]} arm ran).")
    return [*out, *trouble]


def limits(data: RunData, arms: dict[str, ArmResult]) -> list[str]:
    """What this machine and this run can and cannot show: paragraphs."""
    out, form = [], formats_of(data)[0]
    if not _on_gpu(data):
        compared = data.is_comparison or any(arm.converted for arm in arms.values())
        told = CPU_FP8 if form == "FP8" else CPU_OTHER.format(form=form)
        out.append(told if compared else CPU)
    elif data.is_comparison:
        out.append(
            f"Speed was measured on {_gpu_name(data) or 'this GPU'}, at this model size and batch. {form} gains "
            "with the size of the matrix products and can lose on small ones, so the ratio does not carry over "
            "to other shapes or GPUs."
        )
    if data.is_comparison:
        tokens = max((arm.tokens or 0 for arm in arms.values()), default=0)
        out.append(
            (f"Each arm saw {tokens:,.0f} tokens at most. " if tokens else "")
            + (
                "A recipe is the same when its interval lies within what is accepted"
                if repeated(data)
                else "A pass means that in this run no difference larger than the band was found"
            )
            + "; that does not show that there is no difference in a longer run, a larger model or other data."
        )
    return out


def _gap_word(arm: ArmResult) -> str:
    if arm.role == "baseline":
        return "the baseline"
    if not arm.word:
        return ""
    if arm.runs:
        return f"{arm.word}, {arm.runs} run{'s' if arm.runs > 1 else ''}"
    return (BROKEN_WORDS if arm.role == "broken" else GAP_WORDS).get(arm.word, "no data")


def _speedups(arms: dict[str, ArmResult]) -> dict[str, float | None]:
    """Times the baseline's tokens/s; None for the baseline, and where a rate is unknown."""
    baseline = next((arm for arm in arms.values() if arm.role == "baseline"), None)
    unit = baseline.speed.tokens_per_s if baseline else None
    rates = {name: arm.speed.tokens_per_s for name, arm in arms.items()}
    return {name: rate / unit if rate and unit and arms[name] is not baseline else None for name, rate in rates.items()}


def _efficiency(arm: ArmResult) -> dict | None:
    """FLOP/s and MFU of an arm on a known GPU, under both conventions and against both peaks; None elsewhere."""
    if arm.data is None or not arm.speed.tokens_per_s or not _on_gpu(arm.data):
        return None
    try:
        config = strict_validate(TrainConfig, arm.data.config, "the record")
    except LabError:
        return None
    ranks = as_dict(arm.data.run.get("world")).get("size") or 1
    told = efficiency_of(config, arm.speed.tokens_per_s, _gpu_name(arm.data), ranks)
    rates = {k: v / 1e12 for k, v in told.flops_per_s.items()}
    shares = {f"{convention}, {peak} peak": share for (convention, peak), share in told.mfu.items()}
    return {"label": arm.label, "rates": rates, "note": told.note, "mfu": shares}


def _speed(data: RunData) -> dict[str, Any]:
    """{} if the comparison timed nothing, else what the template's speed section shows."""
    rows, verdict = timed_of(data), as_dict(as_dict(data.results.get("speed")).get("verdict"))
    if not verdict:
        return {}
    word, tone = SPEED_WORDS.get(str(verdict.get("word")), SPEED_WORDS["incomplete"])
    profiled = {name: row["kernels"] for name, row in rows.items() if as_dict(row.get("kernels")).get("span_ms")}
    kinds = {name: as_dict(kernels.get("evidence")) for name, kernels in profiled.items()}
    seen = {name: ", ".join(what for key, what in SEEN.items() if kinds[name].get(key)) for name in profiled}
    return {
        "word": word,
        "tone": tone,
        "verdict": verdict,
        "ratios": as_dict(verdict.get("ratios")),
        "rows": rows,
        "categories": CATEGORIES,
        "taken": any(row.get("taken_bytes") for row in rows.values()),
        "unit": PER_THOUSAND,
        "price": price_of(data),
        "share": next((key for row in rows.values() for key in row.get("mfu") or () if key.startswith(MFU)), ""),
        "shares": next((list(row["mfu"]) for row in rows.values() if row.get("mfu")), []),
        "meters": {name: row["meter"] for name, row in rows.items() if row.get("meter")},
        "note": next((row.get("mfu_note") for row in rows.values()), ""),
        "cost": cost_sentence(rows, price_of(data)),
        "classes": CLASSES,
        "profiled": profiled,
        "seen": {name: what or "no kernel of a known class" for name, what in seen.items()},
    }


def _calls(data: RunData) -> list[dict[str, Any]]:
    """One entry a call of `lab compare`: minutes and money, predicted and measured, arm by arm. Calls that ran nothing
    are left out."""
    out = []
    for call in data.results.get("calls") or []:
        items = [item for item in call.get("items") or [] if isinstance(item, dict)]
        done = [item for item in items if item.get("measured_s") is not None]
        left = [f"{i['label']} ({i['part']})" for i in items if i.get("left", i not in done)]
        predicted, price = sum(item["predicted_s"] for item in done), call.get("price_per_hour")
        told = {"minutes": None, "cost": None, "seconds": 0.0, "ended": True, **call}
        told |= {"price": price, "predicted_s": predicted, "done": done, "left": left}
        told["predicted_cost"] = predicted / 3600 * price if price else None
        if items or not told["ended"]:
            out.append(told)
    return out


def _events(arms: dict[str, ArmResult], data: RunData) -> list[dict]:
    """Events of all arms in time order; a row of like events of one arm (a hundred skipped steps) becomes one line."""
    every = [(event, "") for event in data.events] if data.is_comparison else []
    for arm in arms.values():
        label = "" if arm.role == "single" else arm.label
        every += [(event, label) for event in (arm.data.events if arm.data else ())]
    every.sort(key=lambda pair: str(pair[0].get("time", "")))
    out: list[dict] = []
    for event, label in every:
        kind, message, step = str(event.get("kind", "")), str(event.get("message", "")), event.get("step")
        last: dict = next((row for row in reversed(out) if row["arm"] == label), {})
        if (last.get("kind"), last.get("message")) == (kind, message) and None not in (last["last"], step):
            last.update(last=step, count=last["count"] + 1)
            continue
        when = str(event.get("time") or "")[:19].replace("T", " ")
        row = {"time": when, "arm": label, "kind": kind, "message": message}
        out.append({**row, "first": step, "last": step, "count": 1})
    return out


def _environment(data: RunData) -> dict[str, str]:
    """When, versions, hardware, seeds, corpus, ranks. The first arm fills in what a comparison lacks."""
    run, inner = data.run, next((arm.run for arm in data.arms.values()), {})
    hardware = as_dict(run.get("hardware")) or as_dict(inner.get("hardware"))
    cpu, world = as_dict(hardware.get("cpu")), as_dict(run.get("world") or inner.get("world"))
    rows = {what: _time(run.get(what)) or "not recorded" for what in ("started", "finished")}
    if world:
        rows["ranks"] = _named(world)
    if cpu:
        model, threads = cpu.get("model") or cpu.get("architecture"), cpu.get("usable_threads")
        rows["processor"] = f"{model}, {cpu.get('cores')} cores, {threads} threads usable"
    if hardware.get("memory_bytes"):
        rows["memory"] = f"{hardware['memory_bytes'] / 2**30:.1f} GiB"
    if hardware:
        names = [
            f"{gpu.get('name')} (driver {gpu.get('driver')}, compute capability {gpu.get('capability')})"
            for gpu in hardware.get("gpus") or []
            if isinstance(gpu, dict)
        ]
        rows["GPU"] = "; ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names)) or "none"
    if hardware.get("os"):
        rows["system"] = str(hardware["os"])
    rows["versions"] = _named(as_dict(run.get("versions")))
    if run.get("seeds"):
        rows["seeds"] = _flat(run["seeds"])
    if corpus := run.get("corpus") or inner.get("corpus"):
        rows["corpus"] = _flat(corpus)
    if count := run.get("parameters") or inner.get("parameters"):
        rows["parameters"] = _number("{:,.0f}", count)
    return rows


# ---- small parts


def _on_gpu(data: RunData) -> bool:
    """Did the ranks compute on a GPU? From what the run says, else from whether the machine has one."""
    for run in (data.run, *(arm.run for arm in data.arms.values())):
        for table in (as_dict(run.get("config")), run, as_dict(run.get("world"))):
            if table.get("device"):
                return str(table["device"]).startswith("cuda")
    return bool(as_dict(data.run.get("hardware")).get("gpus"))


def _gpu_name(data: RunData) -> str | None:
    gpus = as_dict(data.run.get("hardware")).get("gpus") or []
    return str(gpus[0].get("name")) if gpus and isinstance(gpus[0], dict) else None


def _measured_on(data: RunData, arms: dict[str, ArmResult]) -> str:
    """The machine and the models, for the top of the page: "1 x NVIDIA H200. Losses of a model of 124 M parameters"."""
    name = _gpu_name(data) if _on_gpu(data) else None
    ranks = next((as_dict(arm.data.run.get("world")).get("size") for arm in arms.values() if arm.data), None)
    timed = [run for name in timed_of(data) if (run := found_run(data.path / "speed" / name))]
    ranks = ranks or next((as_dict(run.run.get("world")).get("size") for run in timed), None)
    told = f"{ranks} x {name}" if name and ranks else ""
    sizes = [
        (what, run.run["parameters"])
        for what, runs in (("speed", timed), ("losses", [arm.data for arm in arms.values() if arm.data]))
        if (run := next((run for run in runs if as_number(run.run.get("parameters"))), None))
    ]
    models = "; ".join(f"{what} of a model of {parameters(count)}" for what, count in sizes)
    return ". ".join(filter(None, (told, models[:1].upper() + models[1:])))


def _time(value: Any) -> str:
    return f"{value[:16].replace('T', ' ')} UTC" if isinstance(value, str) and value.endswith("Z") else str(value or "")


def _named(table: dict) -> str:
    return ", ".join(f"{key} {value}" for key, value in table.items())


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) if value else ""


def _flat(value: Any) -> str:
    if not isinstance(value, dict):
        return _plain(value)
    return ", ".join(f"{k} ({_flat(v)})" if isinstance(v, dict) else f"{k} {_plain(v)}" for k, v in value.items())


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _number(form: str, value: Any, unit: float = 1) -> str:
    """`value` / `unit` in this form; words for what is no number."""
    if as_number(value) is None:
        return "\N{EN DASH}"
    return form.format(value / unit) if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"


def _percent(value: Any) -> str:
    digits = 4 if (number := as_number(value)) is not None and abs(number) < 0.1 else 3
    return _number(f"{{:.{digits}f}}\N{NO-BREAK SPACE}%", value)


def _rounded(value: Any, unit: float = 1) -> str:
    """With one decimal; two digits where that would be nothing, as on a CPU."""
    number = as_number(value)
    return _number("{:.2g}" if number is not None and number / unit < 1 else "{:,.1f}", value, unit)


FILTERS = {
    "loss": partial(_number, "{:.4f}"),
    "count": partial(_number, "{:,.0f}"),
    "gib": partial(_number, "{:.2f}\N{NO-BREAK SPACE}GiB", unit=2**30),
    "db": partial(_number, "{:.1f}\N{NO-BREAK SPACE}dB"),
    "per_thousand": lambda seconds, row: None if as_number(seconds) is None else per_thousand(row, seconds),
    "minutes": partial(_number, "{:.1f}", unit=60),
    "one": partial(_number, "{:,.1f}"),
    "two": partial(_number, "{:,.2f}"),
    "percent": _percent,
    "rounded": _rounded,
    "plain": _plain,
    "time": _time,
}

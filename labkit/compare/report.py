"""One self-contained HTML page from a run folder: no script, no external request, readable on paper and in the dark.

Only the folder is read, in whatever state it is: a run that was killed gets a page that says what is missing. All text
of the record is escaped, and the page forbids scripts and requests besides.
"""

from __future__ import annotations

import base64
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.compare.facts import Arm, arms_of, verdict_of
from labkit.compare.report_speed import calls_of, speed_of
from labkit.errors import LabError
from labkit.record.read import RunData, read_run

HERE = Path(__file__).parent
WORDS = {
    "pass": ("\N{CHECK MARK}", "Pass"),
    "fail": ("\N{BALLOT X}", "Fail"),
    "no-power": ("\N{WARNING SIGN}", "No power"),
    "incomplete": ("\N{HORIZONTAL ELLIPSIS}", "Incomplete"),
}
# Keys of run.json that have their own place on the page.
TOLD = (
    "schema",
    "kind",
    "status",
    "command",
    "config",
    "seeds",
    "versions",
    "hardware",
    "started",
    "finished",
    "results",
    "conversion",
    "evidence",
    "corpus",
    "label",
    "role",
    "arm",
    "call",
)


def report(run_path: str | os.PathLike) -> Path:
    """Draw figures/ and write report.html of the run in `run_path`; returns the page's path. LabError: no run there, or
    the folder cannot be written."""
    data = read_run(run_path)
    target, beside = data.path / "report.html", data.path / f".report.html.{os.getpid()}"
    from labkit.compare.figures import draw_all  # matplotlib: only when a report is drawn

    trouble: list[str] = []
    try:
        pictures = draw_all(data, trouble=trouble)
        page = _render(
            data,
            [{"title": p.title, "alt": p.alt, "note": p.note, "source": _data_uri(p.svg)} for p in pictures],
            trouble,
        )
        beside.write_text(page, encoding="utf-8")
        os.replace(beside, target)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise LabError(f"could not write {target}: {error.strerror or error}.") from error
    return target


def _render(data: RunData, pictures: list[dict], trouble: list[str]) -> str:
    from jinja2 import Environment, FileSystemLoader  # only when a report is drawn

    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        loss=_loss, count=_count, gib=_gib, percent=_percent, db=_db, plain=_plain, dotted=_dotted
    )
    run, arms, verdict = data.run, arms_of(data), verdict_of(data)
    single = run.get("kind") != "compare"
    baseline = next((arm for arm in arms.values() if arm.role == "baseline"), None)
    sign, word = WORDS.get(verdict.get("word"), WORDS["incomplete"])
    config, on_gpu = _dict(run.get("config")), _on_gpu(data)
    title = (
        config.get("title")
        or run.get("title")
        or (f"Training run: {arms['run'].label}" if single else "Comparison of number formats")
    )
    return environment.get_template("report.html.j2").render(
        css=(HERE / "report.css").read_text(encoding="utf-8"),
        title=title,
        run=run,
        status=data.status,
        started=_time(run.get("started")),
        on_gpu=on_gpu,
        single=single,
        arms=arms,
        verdict=verdict,
        sign=sign,
        word=word,
        tone=verdict.get("word") if verdict.get("word") in WORDS else "incomplete",
        band=_dict(verdict.get("band")),
        gap_words={name: _gap_word(arm) for name, arm in arms.items()},
        speedups={name: _speedup(arm, baseline) for name, arm in arms.items()} if on_gpu else {},
        efficiencies=[line for arm in arms.values() if (line := _efficiency(arm))],
        missing=missing(data, arms, trouble),
        speed=speed_of(data),
        calls=calls_of(data),
        pictures=pictures,
        limits=limits(data, arms),
        events=_events(arms, data),
        conversions=[arm for arm in arms.values() if arm.conversion or arm.evidence],
        environment=_environment(data),
        config=_pretty(run.get("config")),
        more=_pretty({k: v for k, v in run.items() if k not in TOLD}),
    )


# ---- what the page says in words


def missing(data: RunData, arms: dict[str, Arm], trouble: list[str] = ()) -> list[str]:
    """What a reader would look for and this record does not have, one sentence each."""
    out = []
    single = data.run.get("kind") != "compare"
    if data.status != "finished":
        out.append(
            {
                "running": "The run was still going on when this page was drawn.",
                "interrupted": "The run was interrupted and did not reach its end; the same command resumes it.",
                "failed": "The run failed; the events say why.",
            }.get(data.status, f"The run's status is {data.status}.")
        )
    for arm in arms.values():
        far = f"{arm.steps} of {arm.planned} steps" if arm.planned else f"{arm.steps} steps"
        who = "The record" if single else arm.label
        if not single and arm.status != "finished":
            told = {
                "skipped": "was skipped",
                "failed": f"failed after {far}",
                "pending": "has not started",
                "running": f"was still training, {far} done",
                "interrupted": f"was interrupted, {far} done",
            }
            out.append(
                f"{arm.label} {told.get(arm.status, 'is ' + arm.status)}{': ' + arm.note if arm.note else ''}".rstrip(
                    "."
                )
                + "."
            )
        elif arm.planned and arm.steps < arm.planned:
            out.append(f"{who} holds {far}.")
        if arm.data and arm.data.truncated:
            out.append(
                f"{who}: {arm.data.truncated} line{'s' if arm.data.truncated > 1 else ''} of the record could "
                "not be read (cut off when the run was killed)."
            )
        if arm.data and arm.steps and arm.heldout is None:
            out.append(f"{who} has no held-out loss.")
    if not single and not verdict_of(data):
        out.append("There is no verdict: it is made when the arms are done.")
    if verdict_of(data) and not any(arm.role == "broken" and arm.steps for arm in arms.values()):
        out.append("No broken arm ran, so nothing shows that this comparison could have failed.")
    if arms and not any(arm.scales() for arm in arms.values()):
        out.append("No scales were recorded (probe_every is 0, or no FP8 arm ran).")
    return [*out, *trouble]


def limits(data: RunData, arms: dict[str, Arm]) -> list[str]:
    """What this machine and this run can and cannot show: paragraphs."""
    out = []
    fp8 = data.run.get("kind") == "compare" or any(arm.converted for arm in arms.values())
    if not _on_gpu(data):
        out.append(
            "This ran on a CPU. "
            + (
                "Every operand was really rounded to its format, so losses, gaps, scales and SQNR are FP8's numerics, as "
                "far as a model of this size shows them. It says nothing about FP8's speed: no CPU multiplies in FP8, the "
                "products are computed in a wider format after the rounding, and that makes the FP8 arms slower here. "
                "Read tokens/s and memory "
                "as what this test cost, not as a comparison."
                if fp8
                else "Its tokens/s and memory tell what the run cost here, and nothing about a GPU."
            )
        )
    elif data.run.get("kind") == "compare":
        out.append(
            f"Speed was measured on {_gpu_name(data) or 'this GPU'}, at this model size and batch. FP8 gains "
            "with the size of the matrix products and can lose on small ones, so the ratio does not carry over "
            "to other shapes or GPUs."
        )
    if data.run.get("kind") == "compare":
        tokens = max((arm.tokens or 0 for arm in arms.values()), default=0)
        out.append(
            ("Each arm saw " + _count(tokens) + " tokens at most. " if tokens else "")
            + "A pass means that in this run no difference larger than the band was found; it does not show that "
            "there is none in a longer run, a larger model or other data."
        )
    return out


def _gap_word(arm: Arm) -> str:
    if arm.role == "baseline":
        return "the baseline"
    if not arm.word:
        return ""
    if arm.role == "broken":
        words = {
            "outside": "outside: rejected, as it must be",
            "inside": "inside: NOT rejected",
            "undecided": "undecided: NOT rejected",
        }
    else:
        words = {
            "reference": "gives the band",
            "inside": "inside the band",
            "outside": "outside the band",
            "undecided": "undecided: beyond the band, not told from rounding",
        }
    return words.get(arm.word, "no data")


def _speedup(arm: Arm, baseline: Arm | None) -> float | None:
    if baseline is None or arm is baseline or not arm.speed.tokens_per_s or not baseline.speed.tokens_per_s:
        return None
    return arm.speed.tokens_per_s / baseline.speed.tokens_per_s


def _efficiency(arm: Arm) -> dict | None:
    """FLOP/s and MFU of an arm on a known GPU, under both conventions and against both peaks; None elsewhere."""
    if arm.data is None or not arm.speed.tokens_per_s or not _on_gpu(arm.data):
        return None
    from labkit.model.flops import flops_per_token
    from labkit.record.measure import efficiency
    from labkit.strict import strict_validate
    from labkit.train.config import TrainConfig

    try:
        config = strict_validate(TrainConfig, arm.data.run.get("config"), "the record")
    except LabError:
        return None
    flops = {
        name: flops_per_token(config.resolved_model, config.seq_len, causal=name == "causal")
        for name in ("causal", "full")
    }
    size = _dict(arm.data.run.get("world")).get("size") or 1
    told = efficiency(arm.speed.tokens_per_s, flops, _gpu_name(arm.data), size)
    return {
        "label": arm.label,
        "rates": {k: v / 1e12 for k, v in told.flops_per_s.items()},
        "note": told.note,
        "mfu": {f"{convention}, {peak} peak": share for (convention, peak), share in told.mfu.items()},
    }


def _events(arms: dict[str, Arm], data: RunData) -> list[dict]:
    """Events of all arms in time order; a row of like events of one arm (a hundred skipped steps) becomes one line."""
    every = [(event, "") for event in data.events] if data.run.get("kind") == "compare" else []
    every += [
        (event, "" if arm.role == "single" else arm.label)
        for arm in arms.values()
        if arm.data
        for event in arm.data.events
    ]
    every.sort(key=lambda pair: str(pair[0].get("time", "")))
    out: list[dict] = []
    for event, label in every:
        kind, message, step = str(event.get("kind", "")), str(event.get("message", "")), event.get("step")
        last = next((row for row in reversed(out) if row["arm"] == label), None)
        like = last is not None and (last["kind"], last["message"]) == (kind, message)
        if like and step is not None and last["last"] is not None:
            last.update(last=step, count=last["count"] + 1)
        else:
            out.append(
                {
                    "time": str(event.get("time") or "")[:19].replace("T", " "),
                    "arm": label,
                    "kind": kind,
                    "message": message,
                    "first": step,
                    "last": step,
                    "count": 1,
                }
            )
    return out


def _environment(data: RunData) -> list[tuple[str, str]]:
    """(what, value) rows: when, versions, hardware, seeds, corpus, ranks. The first arm fills in what a comparison
    lacks."""
    run, inner = data.run, next((arm.run for arm in data.arms.values()), {})
    hardware = _dict(run.get("hardware")) or _dict(inner.get("hardware"))
    cpu, world = _dict(hardware.get("cpu")), _dict(run.get("world") or inner.get("world"))
    rows = [(what, _time(run.get(what)) or "not recorded") for what in ("started", "finished")]
    rows += [("ranks", ", ".join(f"{k} {v}" for k, v in world.items()))] if world else []
    rows += (
        [
            (
                "processor",
                f"{cpu.get('model') or cpu.get('architecture')}, {cpu.get('cores')} cores, "
                f"{cpu.get('usable_threads')} threads usable",
            )
        ]
        if cpu
        else []
    )
    rows += [("memory", f"{hardware['memory_bytes'] / 2**30:.1f} GiB")] if hardware.get("memory_bytes") else []
    gpus = [gpu for gpu in hardware.get("gpus") or [] if isinstance(gpu, dict)]
    names = [
        f"{gpu.get('name')} (driver {gpu.get('driver')}, compute capability {gpu.get('capability')})" for gpu in gpus
    ]
    rows += [("GPU", "; ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names)) or "none")] if hardware else []
    rows += [("system", str(hardware["os"]))] if hardware.get("os") else []
    rows += [("versions", ", ".join(f"{k} {v}" for k, v in _dict(run.get("versions")).items()))]
    rows += [("seeds", _flat(run.get("seeds")))] if run.get("seeds") else []
    corpus = run.get("corpus") or inner.get("corpus")
    rows += [("corpus", _flat(corpus))] if corpus else []
    parameters = run.get("parameters") or inner.get("parameters")
    rows += [("parameters", _count(parameters))] if parameters else []
    return rows


# ---- small parts


def _on_gpu(data: RunData) -> bool:
    """Did the ranks compute on a GPU? From what the run says, else from whether the machine has one."""
    for run in (data.run, *(arm.run for arm in data.arms.values())):
        device = _dict(run.get("config")).get("device") or run.get("device") or _dict(run.get("world")).get("device")
        if device:
            return str(device).startswith("cuda")
    return bool(_dict(data.run.get("hardware")).get("gpus"))


def _gpu_name(data: RunData) -> str | None:
    gpus = _dict(data.run.get("hardware")).get("gpus") or []
    return str(gpus[0].get("name")) if gpus and isinstance(gpus[0], dict) else None


def _data_uri(svg: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.read_bytes()).decode()


def _time(value: Any) -> str:
    return f"{value[:16].replace('T', ' ')} UTC" if isinstance(value, str) and value.endswith("Z") else str(value or "")


def _dotted(name: str) -> Any:
    """A module's name that may break after its dots."""
    from markupsafe import Markup, escape

    return Markup(".<wbr>").join(escape(part) for part in str(name).split("."))


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) if value else ""


def _flat(value: Any) -> str:
    if not isinstance(value, dict):
        return _plain(value)
    return ", ".join(f"{k} ({_flat(v)})" if isinstance(v, dict) else f"{k} {_plain(v)}" for k, v in value.items())


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _number(value: Any, form: str) -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return "\N{EN DASH}"
    return form.format(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"


def _loss(value: Any) -> str:
    return _number(value, "{:.4f}")


def _count(value: Any) -> str:
    return _number(value, "{:,.0f}")


def _gib(value: Any) -> str:
    return _number(value / 2**30 if isinstance(value, (int, float)) else None, "{:.2f}\N{NO-BREAK SPACE}GiB")


def _percent(value: Any) -> str:
    return _number(
        value,
        "{:.4f}\N{NO-BREAK SPACE}%"
        if isinstance(value, (int, float)) and abs(value) < 0.1
        else "{:.3f}\N{NO-BREAK SPACE}%",
    )


def _db(value: Any) -> str:
    return _number(value, "{:.1f}\N{NO-BREAK SPACE}dB")


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}

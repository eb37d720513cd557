"""What the site's own pages say, taken from records and from the code: the names that site/pages may use."""

import html
import importlib
import inspect
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import labkit
from labkit.checks.tasks import find_weeks
from labkit.compare.arms import arm_rows
from labkit.compare.repeats import interval
from labkit.record.read import RunData, read_run
from studies.guide.survey import short
from studies.guide.tables import NAMES, constraint, fitting, mark_of
from studies.verdict.show import equal_rows, row_of
from week16_fp8.given import findings, renting

COURSE = Path(__file__).resolve().parents[1]
version = labkit.__version__
REPEATS = json.loads((COURSE / "results" / "2026-11-26-verdict-repeats.json").read_text())
# The answer cards: the record, and what the renter's page makes of it.
CARDS = (findings.H100_WHOLE, findings.H200_AGAIN)
LEADING = ("te-current", "te-delayed")
API = {  # what a week or a script of one's own calls
    "comm": ("group", "ranks", "autopsy", "mesh", "topology", "ledger"),
    "model": ("config", "decoder"),
    "precision": ("config", "base"),
    "parallel": ("options", "transforms"),
    "train": ("config", "job", "loop", "checkpoint"),
    "record": ("read", "run", "measure"),
    "plan": ("request", "planner"),
    "watch": (),
}
CONFIGS = {
    "A training": "labkit.train.config.TrainConfig",
    "`[data]`": "labkit.train.data.sources.DataConfig",
    "`[precision]`": "labkit.precision.config.PrecisionConfig",
    "`[recovery]`": "labkit.train.recovery.RecoveryConfig",
    "A preset's `[speed]`": "labkit.compare.preset.Speed",
}


# ---- tables that a reader can narrow down (static/explore.js)


def explorer(heads: list[str], rows: Iterable[list[Any]], choices: list[str], bar: str = "") -> str:
    """An HTML table; a menu for each column in `choices`; the column `bar` is drawn as bars too. Whole without scripts."""
    rows, at = list(rows), heads.index(bar) if bar else None
    most = max((float(row[at]) for row in rows if row[at] not in ("", None)), default=1.0) if at is not None else 1.0

    def cell(place: int, value: Any) -> str:
        text = "" if value is None else html.escape(str(value))
        if place == at and text:
            return f'<td class="bar" style="--share:{float(text) / most:.3f}">{text}</td>'
        return f"<td>{text}</td>"

    head = "".join(
        f"<th{' data-choose' if name in choices else ''} scope='col'>{html.escape(name)}</th>" for name in heads
    )
    body = "\n".join("<tr>" + "".join(cell(*pair) for pair in enumerate(row)) + "</tr>" for row in rows)
    table = f'<table class="explorer table"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    return f'```{{raw}} html\n<div class="wide no-search" tabindex="0">{table}</div>\n```'


def plans() -> str:
    """The planner's matrix, a line for each field."""
    heads = ["model", "GPUs", "machines", "precision", "best plan", "MFU %", "what binds", "published runs"]
    rows = (
        [
            NAMES[one["model"]], one["gpus"], one["fabric"], one["precision"].upper(), short(one["plan"]),
            f"{100 * one['mfu']:.0f}", constraint(one), mark_of(one),
        ]
        for one in fitting()
    )  # fmt: skip
    return explorer(heads, rows, heads[:4], "MFU %")


def comparisons() -> list[tuple[str, RunData]]:
    """Every record of a comparison, by its path in the course."""
    found = sorted({*COURSE.glob("results/**/run.json"), *COURSE.glob("*/results/**/run.json")})
    return [(path.parent.relative_to(COURSE).as_posix(), read_run(path.parent)) for path in found]


def gpu(run: RunData) -> str:
    names = [one["name"].removeprefix("NVIDIA ").split(" 80GB")[0] for one in run.run["hardware"]["gpus"] or []]
    return f"{len(names)} x {names[0]}" if names else "CPU"


def timings() -> str:
    """Each timed arm of each record."""
    heads = ["GPUs", "model", "recipe", "batch a GPU", "tokens/s a GPU", "times BF16", "date", "record"]
    rows = []
    for name, run in comparisons():
        model = _model((run.config.get("speed") or {}).get("train", {}), run.config["train"])
        for arm in arm_rows(run).values():
            if arm.timed and arm.timed.tokens_per_s:
                each = arm.timed.tokens_per_s / arm.timed.ranks
                times = f"{arm.times:.2f}" if arm.times else ""
                rows.append([gpu(run), model, arm.label, arm.timed.batch, f"{each:,.0f}", times, _date(run), name])
    return explorer(heads, rows, heads[:3], "times BF16")


def verdicts() -> str:
    """Each judged arm of each record."""
    heads = ["GPUs", "model", "recipe", "gap of the loss, %", "interval", "verdict", "runs", "date", "record"]
    rows = []
    for name, run in comparisons():
        for arm in arm_rows(run).values():
            if arm.gap is not None and arm.role != "baseline":
                spread = interval(arm.gap, arm.low, arm.high).partition(" % ")[2]
                model = _model(run.config["train"])
                rows.append(
                    [gpu(run), model, arm.label, f"{arm.gap:+.2f}", spread, arm.word, arm.runs, _date(run), name]
                )
    return explorer(heads, rows, [*heads[:3], "verdict"])


def _model(*settings: dict[str, Any]) -> str:
    """The first model that is named; a table of shapes has no name."""
    named = next(one["model"] for one in settings if one.get("model"))
    return named if isinstance(named, str) else "a shape of its own"


def _date(run: RunData) -> str:
    return str(run.run["started"])[:10]


# ---- the answer cards


def cards() -> list[dict[str, Any]]:
    """A card for each GPU: what was measured, of which arm, in which record."""
    made = []
    for name in CARDS:
        record = renting.read(name)
        rows = arm_rows(record) | renting.answers(name)
        made.append(
            {
                "gpu": gpu(record).removeprefix("1 x "),
                "batch": rows[LEADING[0]].timed.batch,
                "seq": record.config["speed"]["train"]["seq_len"],
                "steps": record.config["train"]["steps"],
                "arms": [rows[arm] for arm in LEADING],
                "equal": equal_rows(REPEATS, record),
                "broken": rows["broken"],
                "price": record.run["results"]["calls"][0]["price_per_hour"],
                "date": _date(record),
                "record": name,
                "command": record.run["command"],
                "calls": len(record.run["results"]["calls"]),
                "versions": record.run["versions"],
            }
        )
    return made


def drawn(kind: str) -> str:
    """ "61 % [12 to 79]": of the comparisons drawn anew from an arm's runs, how many call it the same."""
    rates = row_of(REPEATS, kind)["rates"]
    low, high = rates["range"]["same"]
    return f"{100 * rates['same']:.0f} % [{100 * low:.0f} to {100 * high:.0f}]"


# ---- pages made of the code


def reference() -> Iterator[tuple[str, str]]:
    """(name, text): the commands, the configuration, the API."""
    for tool, module in (("lab", "labkit.cli"), ("grade", "grading.cli")):
        yield f"{tool}.md", f"# The commands of `{tool}`\n\n" + "\n".join(_commands(tool, module))
    yield "configuration.md", _configuration()
    yield from _api()


def _commands(tool: str, module: str) -> Iterator[str]:
    import typer

    top = typer.main.get_command(importlib.import_module(module).app)
    yield f"{_words(top.help)} Every command has `--help`.\n"
    for name, command in top.commands.items():
        below = getattr(command, "commands", None)
        for typed, one in ((f"{name} {sub}", each) for sub, each in below.items()) if below else ((name, command),):
            if not one.hidden:
                yield from _command(f"{tool} {typed}", one)


def _command(typed: str, command: Any) -> Iterator[str]:
    yield f"\n## {typed}\n\n{_words(command.help)}\n"
    rows = [one for one in command.params if not getattr(one, "hidden", False)]
    if rows:
        yield "| argument or option | meaning |\n| --- | --- |"
    for one in rows:
        option = one.param_type_name == "option"
        names = ", ".join(
            f"`{name}`" for name in (one.opts + one.secondary_opts if option else [one.metavar or one.name.upper()])
        )
        shown = (
            one.default
            if option and isinstance(one.default, int | float | str) and not isinstance(one.default, bool)
            else None
        )
        default = f" Default: `{shown}`." if shown not in (None, "") and "Default" not in (one.help or "") else ""
        yield _row(names, _words(one.help) + default)


def _words(text: str | None) -> str:
    return re.sub(r"\s+", " ", (text or "").replace("<", "&lt;")).strip()


def _row(*cells: str) -> str:
    """A table's row, whatever bars its cells hold."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _configuration() -> str:
    parts = [
        "# Configuration\n",
        "A run is one TOML file, and `--set KEY=VALUE` changes one setting of a preset. An unknown key is refused, with the nearest valid one.\n",
    ]
    for title, name in CONFIGS.items():
        module, _, cls = name.rpartition(".")
        model = getattr(importlib.import_module(module), cls)
        source = "\n".join(inspect.getsource(one) for one in model.__mro__ if one.__module__.startswith("labkit"))
        parts += [
            f"\n## {title}\n",
            f"{_words(model.__doc__.splitlines()[0])}\n",
            "| key | default | meaning |\n| --- | --- | --- |",
        ]
        for key, field in model.model_fields.items():
            said = re.search(rf"^    {key}: [^#\n]*#(.*)$", source, re.MULTILINE)
            default = field.get_default(call_default_factory=True)
            shown = (
                "required"
                if field.is_required()
                else "a table, below"
                if hasattr(default, "model_fields")
                else f"`{json.dumps(default)}`"
            )
            parts.append(_row(f"`{key}`", shown, _words(said[1]) if said else ""))
    return "\n".join(parts) + "\n"


def _api() -> Iterator[tuple[str, str]]:
    rows = []
    for package, modules in API.items():
        text = [f"# labkit.{package}\n", f"```{{eval-rst}}\n.. automodule:: labkit.{package}\n```\n"]
        for name in modules:
            module = f"labkit.{package}.{name}"
            text.append(f"\n## {package}.{name}\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```\n")
        yield f"api/{package}.md", "\n".join(text)
        said = importlib.import_module(f"labkit.{package}").__doc__ or ""
        rows.append(f"- [labkit.{package}]({package}.md): {_words(said.splitlines()[0])}")
    trees = "\n".join(["```{toctree}", ":hidden:", ":titlesonly:", "", *API, "```"])
    words = "What a week or a script of your own calls. The other modules say at their head what they are for."
    yield "api/index.md", "\n".join(["# API", "", words, "", *rows, "", trees, ""])


def weeks() -> list[Any]:
    return find_weeks(COURSE)


def pictures() -> list[tuple[str, str]]:
    """(path, what it shows) of the pictures that give no prediction's answer away."""
    from PIL import Image

    found = []
    for path in (*sorted(COURSE.glob("docs/images/*.png")), *sorted(COURSE.glob("results/figures/*.png"))):
        with Image.open(path) as image:
            found.append((path.relative_to(COURSE).as_posix(), str(image.info["Description"])))
    return found


def autopsy() -> str:
    """What the picture of a deadlock shows, as text."""
    lines = re.findall(r"<text[^>]*>(.*?)</text>", (COURSE / "docs" / "images" / "autopsy.svg").read_text())
    return html.unescape("\n".join(lines[1:])).replace("\xa0", " ")  # without the window's title


# ---- what `make demo` left

SAMPLES = {
    "report.html": ("demo/report.html", "The report of `lab compare`, from `make demo`"),
    "class.html": (
        "grading-demo/published/week13/class.html",
        "The class's page: what it has not understood comes first",
    ),
    "wrong.html": (
        "grading-demo/published/week13/feedback/wrong/week13.html",
        "A student's page: one index of the ring is off by one",
    ),
    "hanging.html": (
        "grading-demo/published/week13/feedback/hanging/week13.html",
        "A student's page: every rank sends before it receives",
    ),
}


def samples() -> list[tuple[str, str]]:
    """(file, title) of what is there."""
    return [(name, title) for name, (path, title) in SAMPLES.items() if (COURSE / "runs" / path).is_file()]


def sample(runs: Path, to: Path) -> None:
    """Put the demo's pages onto the site, as they are."""
    for name, _ in samples():
        to.mkdir(exist_ok=True)
        shutil.copyfile(runs / SAMPLES[name][0], to / name)


# ---- the syllabus


def points(week: Any) -> tuple[int, int]:
    """(automatic, written)."""
    automatic, written = (sum(one.points for one in week.tasks if one.kind == kind) for kind in ("auto", "written"))
    return automatic, written


def outcome(week: Any) -> str:
    return "; ".join(one.title for one in week.tasks if one.kind == "auto" and one.points)

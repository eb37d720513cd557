"""Tables as data: a column is a head, where its value stands, and how that is written."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.table import Table

from labkit.compare.arms import Arm
from labkit.compare.equal_loss import ASSUMED
from labkit.compare.repeats import interval
from labkit.compare.terminal import markdown_table
from labkit.record.kernels import CLASSES
from labkit.record.schema import Band

GIB = 2**30
PER_THOUSAND = "ms per 1,000 tokens"  # of a GPU: the one unit of time, whatever an arm's batch
DASH = "\N{EN DASH}"  # on the page, where nothing is known
DECIBELS, IN_GIB = "{:.1f}\N{NO-BREAK SPACE}dB", "{:.2f}\N{NO-BREAK SPACE}GiB"
GAP_WORDS = {
    "reference": "gives the band",
    "inside": "inside the band",
    "outside": "outside the band",
    "undecided": "undecided: beyond the band, which rounding may explain",
}
BROKEN_WORDS = {
    "outside": "outside: rejected, as it must be",
    "inside": "inside: NOT rejected",
    "undecided": "undecided: NOT rejected",
}


@dataclass(frozen=True)
class Column:
    """value: an attribute's dotted name or a function of the row; form: a format or a function; "" for None.

    head: in Markdown and on the page; narrow: on a terminal of 80 columns, None: not there.
    """

    head: str
    value: str | Callable[[Any], Any]
    form: str | Callable[[Any], str] = "{}"
    narrow: str | None = ""

    def cell(self, row: Any) -> str:
        value = self.value(row) if callable(self.value) else attrgetter(self.value)(row)
        if value is None or isinstance(value, Markup):
            return value or ""
        return self.form(value) if callable(self.form) else number(value, self.form)


def on_terminal(columns: Sequence[Column], rows: Iterable[Any]) -> Table:
    """Names, in the first column, fold where it is narrow; a cut number would be a wrong one."""
    shown = [column for column in columns if column.narrow is not None]
    out = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(shown):
        out.add_column(column.narrow or column.head, justify="right" if i else "left", no_wrap=bool(i))
    for row in rows:
        out.add_row(*(column.cell(row) for column in shown))
    return out


def as_markdown(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    lines = ([" ".join(column.cell(row).split()) for column in columns] for row in rows)
    return markdown_table([column.head for column in columns], lines)


def as_html(columns: Sequence[Column], rows: Iterable[Any]) -> Markup:
    """A cell that is Markup stays as it is; all other text is escaped."""
    heads = Markup("").join(Markup('<th scope="col">{}</th>').format(column.head) for column in columns)
    cell, (first, *others) = Markup('<td data-head="{}">{}</td>'), columns
    lines = [
        Markup('<tr><th scope="row">{}</th>{}</tr>\n').format(
            first.cell(row) or DASH, Markup("").join(cell.format(c.head, c.cell(row) or DASH) for c in others)
        )
        for row in rows
    ]
    frame = Markup('<table class="arms">\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table>')
    return frame.format(heads, Markup("").join(lines))


def filled(columns: Sequence[Column], rows: Sequence[Any]) -> list[Column]:
    """The columns in which something stands."""
    return [column for column in columns if any(column.cell(row) for row in rows)]


# ---- how values are written


def number(value: Any, form: str) -> str:
    """A value in this form; words for a number that is not finite, "" for None."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    return "" if value is None else form.format(value)


def percent(value: float) -> str:
    return number(value, f"{{:.{4 if abs(value) < 0.1 else 3}f}}\N{NO-BREAK SPACE}%")


# ---- both answers, the speed part, the loss's part


def of_answers(rows: Sequence[Arm], baseline: str) -> list[Column]:
    """Rows are `arms.answers`. The columns in which something stands; further steps, where no speed has them in it."""
    columns = [
        Column("arm", "timed_label"),
        Column(f"x {baseline}'s speed", "times", "{:.2f}", f"x {baseline}'s\nspeed"),
        Column("at equal loss [interval]", "at_equal_loss", at_equal_loss, "at equal loss\n[interval]"),
        Column("loss gap % [interval]", lambda arm: "" if arm.role == "baseline" else gap_interval(arm)),
        *([] if any(row.times for row in rows) else [FURTHER]),
        Column("loss", lambda arm: "baseline" if arm.role == "baseline" else arm.word or "not judged"),
        Column("runs", lambda arm: arm.runs or None),
    ]
    return filled(columns, rows)


def at_equal_loss(value: tuple[float, float, float]) -> str:
    """ "1.28 [1.25, 1.31]"."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*value)


FURTHER = Column(
    "further steps to equal loss [interval]",
    "further",
    "{0.steps:+.1f} [{0.low:+.1f}, {0.high:+.1f}] of {0.trained}",
    "further steps\n[interval]",
)


def assumed(rows: Iterable[Arm], baseline: str) -> str:
    """What the speed at equal loss takes for granted, in a sentence; "" where no row has one."""
    return ASSUMED.format(baseline=baseline) if any(row.further for row in rows) else ""


def of_speed(rows: Sequence[Any], baseline: str) -> list[Column]:
    """Rows are arms that were timed."""
    unit = rows[0].timed.unit if rows else "tokens/s"

    def peak(arm: Any) -> str:
        used = f" ({arm.timed.device_used_bytes / GIB:.1f})" if arm.timed.device_used_bytes else ""
        return f"{arm.timed.memory['peak'] / GIB:.1f}{used}"

    return [
        Column("arm", "timed_label"),
        Column(unit, "timed.of_one", "{:,.0f}", unit.replace("s a", "s\na")),
        Column(f"x {baseline}", "ratio.baseline", "{:.2f}", f"x\n{baseline}"),
        Column(f"x own {baseline}", "ratio.library", "{:.2f}", f"x own\n{baseline}"),
        Column(PER_THOUSAND, lambda arm: arm.timed.per_thousand(), "{:,.2f}", "ms/1k\ntokens"),
        Column("spread %", lambda arm: 100 * arm.timed.half_spread, "{:.1f}", "+-\n%"),
        Column("TFLOP/s causal", lambda arm: arm.timed.flops_per_s["causal"] / 1e12, "{:,.1f}", "TFLOP/s\ncausal"),
        Column("TFLOP/s full", lambda arm: arm.timed.flops_per_s["full"] / 1e12, "{:,.1f}", None),
        Column("peak GiB", peak, narrow="GiB"),
    ]


def of_milliseconds() -> list[Column]:
    """Rows are arms that were profiled."""
    narrow = ["GEMM\nbf16", "GEMM\nfp8", "cast", "atten-\ntion", "norm,\nelem.", "opti-\nmizer"]
    narrow += ["comm.", "other", "idle"]

    def of_class(kind: str) -> Callable[[Any], float]:
        return lambda arm: arm.timed.per_thousand(arm.timed.kernels.classes_ms.get(kind, 0.0) / 1e3)

    head = Column(PER_THOUSAND, "timed_label", narrow="ms per 1,000\ntokens")
    return [head, *(Column(kind, of_class(kind), "{:,.2f}", short) for kind, short in zip(CLASSES, narrow))]


def of_all(arms: Iterable[Arm]) -> str:
    """ "tokens/s", of several ranks "tokens/s of 4 GPUs": the loss's part sums them."""
    worlds = [arm.data.training.world for arm in arms if arm.data and arm.data.training.world]
    size, kind = max(((world.size or 1, world.device) for world in worlds), default=(1, None))
    return "tokens/s" if size == 1 else f"tokens/s of {size} {'GPUs' if kind == 'cuda' else 'ranks'}"


def of_losses(arms: Sequence[Arm], band: Band | None) -> list[Column]:
    """Rows are arms of the loss's part. The terminal does not show repeated runs' gaps again: the answers have them."""
    gap = Column("gap %", _gap)
    if any(arm.judged and arm.judged.runs for arm in arms):
        gap = Column("gap % [interval]", _gap, narrow=None)
    elif band and band.threshold is not None:
        gap = Column(f"gap % (band {band.threshold:.2g})", _gap, narrow=f"gap %,\nband {band.threshold:.2g}")

    def done(value: Callable[[Arm], Any]) -> Callable[[Arm], Any]:
        return lambda arm: value(arm) if arm.status == "finished" else None

    def rate(arm: Arm) -> str:
        return arm.status if arm.status != "finished" else number(arm.speed.tokens_per_s, "{:,.0f}")

    speed = of_all(arms)
    return [
        Column("arm", "label", narrow="\narm"),
        Column(speed, rate, narrow=speed.replace(" of", "\nof") if " " in speed else "\ntokens/s"),
        Column("GiB a rank", done(lambda arm: arm.peak_bytes and arm.peak_bytes / GIB), "{:.2f}", "GiB a\nrank"),
        Column("held-out loss", done(lambda arm: arm.val_loss), "{:.4f}", "held-\nout"),
        gap,
        *filled([replace(FURTHER, narrow=None)], arms),
        Column("worst SQNR dB", done(lambda arm: arm.sqnr and arm.sqnr.db), "{:.1f}", "SQNR\ndB"),
        Column("converted/left", done(lambda arm: f"{arm.converted}/{arm.left}"), narrow="conv./\nleft"),
        Column("NaN events", done(lambda arm: arm.nonfinite), narrow="\nNaN"),
    ]


def gap_interval(arm: Arm) -> str:
    """ "+0.03 % [-0.05, +0.11]"; see `repeats.interval`."""
    return interval(arm.gap, arm.low, arm.high)


def _gap(arm: Arm) -> str | None:
    if arm.status != "finished" or arm.role == "baseline" or arm.judged is None:
        return "baseline" if arm.status == "finished" and arm.role == "baseline" else None
    if arm.judged.runs:
        return f"{gap_interval(arm).replace(' %', '')} {arm.judged.word}"
    value = "" if arm.judged.value is None else number(arm.judged.value, "{:.3f}")
    word = {"inside": "in", "outside": "OUT", "undecided": "?", "reference": "twin"}.get(arm.judged.word, "")
    return f"{value} {word:>4}"


# ---- the page's, with more beside each number


def on_page_speed(rows: Sequence[Any], baseline: str, price: float | None, share: str) -> list[Column]:
    """Rows are arms that were timed. price: of an hour of the machine; share: which MFU, "" for none."""

    def milliseconds(arm: Any) -> Markup:
        low, high = arm.timed.per_thousand(arm.timed.step_p10), arm.timed.per_thousand(arm.timed.step_p90)
        return with_small(f"{arm.timed.per_thousand():,.2f}", f"{low:,.2f} to {high:,.2f}")

    columns = [
        Column("arm", lambda arm: with_small(arm.timed_label, arm.role)),
        Column(rows[0].timed.unit if rows else "tokens/s", "timed.of_one", "{:,.0f}"),
        Column(f"times {baseline}", "ratio.baseline", "{:,.2f}"),
        Column(f"times its own library's {baseline}", "ratio.library", "{:,.2f}"),
        Column(f"{PER_THOUSAND} of a GPU (10 % to 90 %)", milliseconds),
    ]
    if price:
        cost = Column("a billion tokens cost", lambda arm: price / 3600 * 1e9 / arm.timed.tokens_per_s, "{:,.2f}")
        columns.append(cost)
    if share:
        columns.append(Column("MFU %", lambda arm: 100 * arm.timed.mfu.get(share, 0.0) or None, "{:,.1f}"))
    return columns


def on_page_losses(arms: Sequence[Arm], against_baseline: bool) -> list[Column]:
    """Rows are arms of the loss's part. against_baseline: with their speed against the baseline's."""

    def gap(arm: Arm) -> str | Markup:
        judged, word = arm.judged, gap_word(arm)
        if arm.role == "baseline" or not judged:
            return with_small("0", word) if arm.role == "baseline" else ""
        value = gap_interval(arm) if judged.runs else "" if judged.value is None else percent(judged.value)
        if judged.word in ("outside", "different"):
            value = Markup("<strong>{}</strong>").format(value)
        return with_small(value or DASH, word) if word else value

    def val_loss(arm: Arm) -> str | Markup:
        value = number(arm.val_loss, "{:.4f}")
        early = value and arm.val_step is not None and arm.planned and arm.val_step < arm.planned
        return with_small(value, f"at step {arm.val_step:,}") if early else value

    def sqnr(arm: Arm) -> Markup | None:
        return with_small(number(arm.sqnr.db, DECIBELS), breakable(arm.sqnr.tensor)) if arm.sqnr else None

    def role(arm: Arm) -> Markup:
        return with_small(arm.label, arm.role if arm.status == "finished" else f"{arm.role}, {arm.status}")

    known = [Column("against baseline", "speedup", "{:.2f} \N{MULTIPLICATION SIGN}")] if against_baseline else []
    return [
        Column("arm", role),
        Column(of_all(arms), "speed.tokens_per_s", "{:,.0f}"),
        *known,
        Column("peak memory of a rank", lambda arm: arm.peak_bytes and arm.peak_bytes / GIB, IN_GIB),
        Column("held-out loss", val_loss),
        Column("gap of the loss", gap),
        Column("lowest SQNR", sqnr),
        Column("linears converted / left", lambda a: None if a.converted is None else f"{a.converted} / {a.left}"),
        Column("steps not finite / skipped", lambda a: f"{a.nonfinite} / {a.skipped_steps}" if a.steps else None),
    ]


def gap_word(arm: Arm) -> str:
    """How the arm was judged, in words."""
    if arm.role == "baseline" or not (arm.judged and arm.judged.word):
        return "the baseline" if arm.role == "baseline" else ""
    if runs := arm.judged.runs:
        return f"{arm.judged.word}, {runs} run{'s' if runs > 1 else ''}"
    return (BROKEN_WORDS if arm.role == "broken" else GAP_WORDS).get(arm.judged.word, "no data")


def with_small(text: object, below: object) -> Markup:
    return Markup("{}<small>{}</small>").format(text, below)


def breakable(tensor: str) -> Markup:
    """A tensor's name, which may be broken at its dots."""
    return Markup(".<wbr>").join(tensor.split("."))

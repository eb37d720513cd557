"""The pictures of the week, drawn from slices, ledgers, replays and records. No picture says anything by colour alone.

Every function returns a `Picture`: files in `folder` (PNG and SVG), a title, and `alt`, what it shows in words;
`efficiency` returns None while there is no record of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.comm.wire import Replay
from labkit.record.plotting import (
    BAND,
    CANDIDATES,
    INK,
    MUTED,
    PAPER,
    WIDTH,
    Picture,
    folder_or_temp,
    label_ends,
    save,
    styled,
)
from week15_tp_attention.given import records
from week15_tp_attention.given.experiments import Memory, Message, held, idle

BLUE, RED = "#005a9c", "#a11212"
OF_RANK = (BLUE, *CANDIDATES)
NAMES = {"wq": "W_q  by rows", "wk": "W_k  by rows", "wv": "W_v  by rows", "wo": "W_o  by columns"}


def shards(found: Mapping[str, Sequence[Sequence[int]]], N: int, folder: Path | None = None) -> Picture:
    """`experiments.holders`: a box for each head, with the ranks that have it. Hatched: more than one rank has it. A
    cross: nobody has."""
    from matplotlib.patches import Rectangle

    heads = len(found["wq"])
    words = []
    with styled() as figure:
        fig = figure(WIDTH, 2.9)
        axes = fig.subplots(1, 4)
        for ax, (name, units) in zip(axes, found.items()):
            ax.set_title(NAMES[name])
            size = heads / len(units) if name == "wo" else 1.0
            for u, ranks in enumerate(units):
                several = len(ranks) > 1
                color = OF_RANK[ranks[0] % len(OF_RANK)] if ranks else PAPER
                place = ((u * size, 0), size, heads) if name == "wo" else ((0, u), heads, 1)
                box = Rectangle(*place, facecolor=color, edgecolor=PAPER if ranks else RED, linewidth=1.2, alpha=0.82)
                ax.add_patch(box)
                if several:
                    ax.add_patch(Rectangle(*place, fill=False, edgecolor=PAPER, hatch="//", linewidth=1.2))
                text = " ".join(map(str, ranks)) if ranks else "x"
                x, y = (u + 0.5, heads / 2) if name == "wo" else (heads / 2, u + 0.5)
                frame = {"boxstyle": "round,pad=0.16", "facecolor": PAPER, "edgecolor": "none"}
                turn = 90 if name == "wo" and several else 0  # columns are narrow: "0 1 2 3" would cover the next one
                color = INK if ranks else RED
                ax.text(x, y, text, ha="center", va="center", fontsize=7.2, color=color, bbox=frame, rotation=turn)
            ax.set(xlim=(0, heads), ylim=(heads if name == "wo" else max(len(units), 1), 0))
            if name != "wo":
                ax.set_ylim(heads, 0)
            ax.set_aspect("equal")
            ax.axis("off")
            words.append(f"{name}: " + ", ".join("+".join(map(str, ranks)) or "nobody" for ranks in units))
        fig.tight_layout(pad=0.4, w_pad=1.2)
        return save(
            fig,
            folder_or_temp(folder),
            "shards",
            f"Who has which heads, {N} ranks",
            f"The ranks that hold each head. {'; '.join(words)}.",
            "A box is a head, the numbers are ranks. Hatched: replicas. Empty with a cross: no rank has it.",
        )


LOOKS = {"all_reduce": (BLUE, ""), "all_gather": ("#b34700", "//"), "reduce_scatter": ("#007a63", "..")}


def messages(of: Mapping[str, Sequence[Message]], kept: Mapping[str, int], folder: Path | None = None) -> Picture:
    """One block's messages in order, as wide as their ring bytes, and what is kept for backward."""
    from matplotlib.patches import Patch

    words = []
    with styled() as figure:
        fig = figure(WIDTH, 0.62 * 2 * len(of) + 1.1)
        left, right = fig.subplots(1, 2, width_ratios=(3.4, 1), sharey=True)
        rows = [(name, phase) for name in of for phase in ("forward", "backward")]
        unit = max(m.ring_bytes for m in next(iter(of.values())))
        for y, (name, phase) in enumerate(rows):
            at = 0.0
            for m in (m for m in of[name] if m.phase == phase):
                color, hatch = LOOKS[m.kind]
                left.barh(y, m.ring_bytes / unit, left=at, height=0.62, color=color, hatch=hatch, edgecolor=PAPER)
                at += m.ring_bytes / unit
            left.text(at + 0.04, y, f"{at:.2f}", va="center", fontsize=8)
            if phase == "backward":
                right.barh(y - 0.5, kept[name] / 1024, height=0.8, color=MUTED)
                right.text(kept[name] / 1024, y - 0.5, f" {kept[name] / 1024:.0f}", va="center", fontsize=8)
                total = sum(m.ring_bytes for m in of[name]) / unit
                words.append(f"{name}: {total:.2f} all-reduces' bytes, {kept[name]} bytes kept")
        left.set_yticks(range(len(rows)), [f"{name}\n{phase}" if phase == "forward" else phase for name, phase in rows])
        left.set_ylim(len(rows) - 0.5, -0.5)
        left.set(xlabel="ring bytes, in units of one all-reduce of the block's width")
        left.set_title("messages of one block")
        right.set_title("kept, KiB")
        right.margins(x=0.3)
        for ax in (left, right):
            ax.grid(axis="y", visible=False)
            ax.tick_params(axis="y", length=0)
        marks = [
            Patch(facecolor=c, hatch=h, edgecolor=PAPER, label=kind.replace("_", "-")) for kind, (c, h) in LOOKS.items()
        ]
        left.legend(handles=marks, loc="upper center", bbox_to_anchor=(0.5, -0.24 * 6 / len(rows)), ncols=3)
        fig.tight_layout(pad=0.5)
        return save(
            fig,
            folder_or_temp(folder),
            "messages",
            "One block's messages",
            f"Ring bytes of a block, and what is kept. {'; '.join(words)}.",
            "From the ledger of one run. The thin boxes in backward are the norms' weights.",
        )


class Chart(NamedTuple):
    """One panel of a pipeline's chart. spans: (stage, label as "F3", begin, end) in seconds."""

    title: str
    spans: list[tuple[int, str, float, float]]
    time: float


def schedules(runs: Mapping[str, tuple[Replay, Sequence[Any]]], folder: Path | None = None) -> Picture:
    """The pipeline's chart: {name: (replay, ledgers)}, a panel for each. Shaded: a stage stands idle."""
    charts, words = [], []
    for name, (run, ledgers) in runs.items():
        kept = [held(ledger) for ledger in ledgers]
        text = f"{run.time * 1e3:.0f} ms, idle {idle(run):.0%}; in flight {', '.join(map(str, kept))}"
        spans = [(span.rank, span.label, span.begin, span.end) for span in run.spans]
        charts.append(Chart(f"{name}: {text}", spans, run.time))
        words.append(f"{name} takes {run.time * 1e3:.0f} ms, idle {idle(run):.1%}, in flight {kept}")
    return _charts(
        charts, "schedules", "Pipelines that really ran", f"{'; '.join(words)}.", "on the virtual wire", folder
    )


def measured_pipeline(record: dict[str, Any] | None, M: int = 8, folder: Path | None = None) -> Picture | None:
    """The same from a bench record: the spans as the GPUs' own events timed them. None without one."""
    rows = [row for row in (record or {}).get("pipeline", []) if row["M"] == M]
    charts, words = [], []
    for row in rows:
        spans = [(p, *span) for p, own in enumerate(row["spans"]) for span in own]
        text = f"{row['seconds'] * 1e3:.0f} ms, bubble {row['measured']:.1%}, derived {row['derived']:.1%}"
        charts.append(Chart(f"{row['schedule']}: {text}", spans, row["seconds"]))
        words.append(f"{row['schedule']} takes {text}")
    if not charts:
        return None
    title = f"A pipeline on {record['hardware_name'] if record else ''}"
    return _charts(charts, "pipeline", title, f"{'; '.join(words)}.", "measured", folder)


def _charts(charts: Sequence[Chart], name: str, title: str, alt: str, clock: str, folder: Path | None) -> Picture:
    # A schedule that takes twice as long as the others would squeeze them: it is cut off, and says so.
    *others, longest = sorted(chart.time for chart in charts)
    last = others[-1] if others and longest > 2 * others[-1] else longest
    P = 1 + max(span[0] for chart in charts for span in chart.spans)
    with styled() as figure:
        fig = figure(WIDTH, (0.30 * P + 0.55) * len(charts) + 0.35)
        axes = fig.subplots(len(charts), 1, sharex=True, squeeze=False)[:, 0]
        for ax, chart in zip(axes, charts):
            for p in range(P):
                ax.barh(p, min(chart.time, last) * 1e3, height=0.86, color=BAND, zorder=0)
            for stage, label, begin, end in chart.spans:
                if begin >= last:
                    continue
                forward, width = label.startswith("F"), (end - begin) * 1e3
                color, hatch = (BLUE, "") if forward else ("#b34700", "///")
                box = {"color": color, "hatch": hatch, "edgecolor": PAPER, "linewidth": 0.7}
                ax.barh(stage, width, left=begin * 1e3, height=0.8, **box)
                if width > last * 1e3 / 60:
                    frame = {"boxstyle": "round,pad=0.1", "facecolor": PAPER, "edgecolor": "none"}
                    middle = (begin + end) / 2 * 1e3
                    ax.text(middle, stage, label[1:], ha="center", va="center", fontsize=6, bbox=frame)
            ax.set_title(chart.title + (f" (the first {last * 1e3:.0f} ms)" if chart.time > last else ""))
            ax.set_yticks(range(P), [f"stage {p}" for p in range(P)])
            ax.set_ylim(P - 0.5, -0.5)
            ax.grid(visible=False)
            ax.tick_params(axis="y", length=0)
        axes[-1].set(xlabel=f"milliseconds, {clock}", xlim=(0, last * 1e3 * 1.01))
        fig.tight_layout(pad=0.5, h_pad=0.7)
        note = "Plain boxes: forward; hatched: backward; the number is the micro-batch. Pale: the stage stands idle."
        return save(fig, folder_or_temp(folder), name, title, alt, note)


def by_dimension(of: Mapping[str, Memory], folder: Path | None = None) -> Picture:
    """What each way to spread a model divides: two bars for each, in units of one rank's."""
    one = next(iter(of.values()))
    words = []
    with styled() as figure:
        fig = figure(WIDTH, 2.7)
        ax = fig.subplots()
        for k, (_name, m) in enumerate(of.items()):
            for shift, value, color, hatch in (
                (-0.19, m.state / one.state, BLUE, ""),
                (0.19, m.kept / one.kept, "#b34700", "//"),
            ):
                ax.bar(k + shift, value, width=0.36, color=color, hatch=hatch, edgecolor=PAPER)
                ax.text(k + shift, value + 0.015, f"{value:.2f}", ha="center", fontsize=8)
            words.append(f"{_name}: state {m.state / one.state:.2f}, activations {m.kept / one.kept:.2f}")
        ax.set_xticks(range(len(of)), list(of))
        ax.set(ylabel="share of one rank's", ylim=(0, 1.18))
        ax.grid(axis="x", visible=False)
        ax.set_title("plain: weights, gradients, optimizer state; hatched: kept for backward")
        fig.tight_layout(pad=0.5)
        return save(
            fig,
            folder_or_temp(folder),
            "by_dimension",
            "What each dimension divides",
            f"On the rank that has most, relative to one rank. {'; '.join(words)}.",
            "The first stage of a pipeline keeps as many micro-batches as there are stages after it, and its own.",
        )


def curves(runs: Mapping[str, Sequence[float]], folder: Path | None = None) -> Picture:
    """Losses against steps: {name: losses}."""
    with styled() as figure:
        fig = figure(WIDTH, 2.9)
        ax = fig.subplots()
        ends = []
        for k, (name, losses) in enumerate(runs.items()):
            color, dash = OF_RANK[k], ("-", (0, (5, 2)), (0, (1.5, 1.5)))[k % 3]
            ax.plot(range(len(losses)), losses, color=color, linestyle=dash, linewidth=1.8)
            ends.append((len(losses) - 1, losses[-1], name, color))
        ax.set(xlabel="step", ylabel="loss")
        fig.tight_layout(pad=0.5, rect=(0, 0, 0.72, 1))
        label_ends(ax, ends)
        words = "; ".join(f"{name} ends at {losses[-1]:.3g}" for name, losses in runs.items())
        return save(fig, folder_or_temp(folder), "curves", "Loss against steps", f"{words}.")


def efficiency(
    record: dict[str, Any] | None, what: str = "block", slow: float = 50e9, folder: Path | None = None
) -> Picture | None:
    """From a bench record. Left: efficiency against ranks as derived with nothing hidden, on the measured wire and on
    one of `slow` bytes/s, and what was measured. Right: the contenders at the most ranks. None without a record."""
    one = records.seconds(record, what, "plain", 1) if record else None
    if record is None or not one or not record["wire"].get("all_reduce"):
        return None
    N = max(map(int, record["wire"]["all_reduce"]))
    wire = record["wire"]["all_reduce"][str(N)]
    rate = records.wire(record, N)
    count = 4 if what == "block" else 2
    names = dict.fromkeys(row["contender"] for row in record["rows"] if row["what"] == what and row["N"] == N)
    found = {name: records.efficiency(record, what, name, N) or 0.0 for name in names if "FP8" not in name}
    ranked = sorted(found.items(), key=lambda item: item[1])
    words = []
    with styled() as figure:
        fig = figure(WIDTH, 3.4)
        left, right = fig.subplots(1, 2, width_ratios=(1, 1.15))
        Ns = [1, 2, 4, 8]
        for speed, dash in ((rate, "-"), (slow, (0, (2, 2)))):
            values = [one / (one + n * count * 2 * (n - 1) / n * wire["bytes"] / speed) for n in Ns]
            left.plot(Ns, values, color=MUTED, linestyle=dash, linewidth=1.5)
            left.text(8, values[-1] - 0.03, f"{speed / 1e9:.0f} GB/s", ha="right", va="top", fontsize=8, color=MUTED)
            text = ", ".join(f"{value:.1%} on {n}" for n, value in zip(Ns[1:], values[1:]))
            words.append(f"derived at {speed / 1e9:.0f} GB/s with nothing hidden: {text}")
        low, high = ranked[0][1], ranked[-1][1]  # one bar: ten marks would lie on each other; each has a name beside it
        left.plot([N, N], [low, high], color=BLUE, linewidth=5, solid_capstyle="butt")
        text = f"measured,\n{low:.0%} to {high:.0%}"
        left.text(N * 1.08, (low + high) / 2 - 0.04, text, va="center", fontsize=8, color=BLUE)
        words += [f"{name} {value:.1%}" for name, value in ranked]
        left.set_xscale("log", base=2)
        left.set_xticks(Ns, [str(n) for n in Ns])
        left.set(xlabel="ranks", ylabel="efficiency: t(1) / (N t(N))", ylim=(0, 1.08))
        left.set_title("derived, nothing hidden")
        for y, (name, value) in enumerate(ranked):
            own = not name.startswith(("DTensor", "te.", "torch"))
            right.barh(
                y,
                value,
                height=0.66,
                color=BLUE if own else PAPER,
                edgecolor=BLUE if own else RED,
                hatch="" if own else "//",
            )
            right.text(value + 0.01, y, f"{value:.1%}", va="center", fontsize=8)
        right.set_yticks(range(len(ranked)), [name for name, _ in ranked], fontsize=8)
        right.set(xlim=(0, 1.12))
        right.set_title(f"{N} ranks; hatched: libraries")
        for axis in (left.yaxis, right.xaxis):
            axis.set_major_formatter(lambda share, _: f"{share:.0%}")
        right.grid(axis="y", visible=False)
        right.tick_params(axis="y", length=0)
        fig.tight_layout(pad=0.5)
        return save(
            fig,
            folder_or_temp(folder),
            f"efficiency_{what}",
            f"Efficiency of {'a block' if what == 'block' else 'an attention layer'}, {record['hardware_name']}",
            f"{'; '.join(words)}.",
            "Filled bars: the parts of this week, from its solutions. Hatched bars: libraries. Dashed: a link of "
            f"{slow / 1e9:.0f} GB/s, such as a network card's.",
        )

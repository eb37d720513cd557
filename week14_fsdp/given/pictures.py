"""The week's pictures, drawn from runs: your own, the virtual wire's, and the recorded H200s'.

Every function returns a `Picture`: files in `folder` (PNG and SVG), a title, and `alt`, what it shows in words. No
picture says anything by colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.comm.wire import Replay
from labkit.record.plotting import (
    GRID,
    INK,
    MUTED,
    PAPER,
    WIDTH,
    Picture,
    Style,
    folder_or_temp,
    label_ends,
    margins,
    save,
    styled,
)
from week14_fsdp.given.experiments import Sawtooth

GB = 1e9


KINDS = {  # colour and hatch of each kind of memory
    "weights": ("#005a9c", ""),
    "gathered": ("#007a63", "//"),
    "gradients": ("#b34700", "\\\\"),
    "masters": ("#6a3fb5", ".."),
    "moments": ("#9c1f6d", "xx"),
    "activations": ("#8a6100", "--"),
    "logits": ("#5d6d00", "++"),
}
STAGE_NAMES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3 (FSDP)"}
LINES = (
    Style("#005a9c", "-", "o", ""),
    Style("#b34700", (0, (5, 1.6)), "D", ""),
    Style("#007a63", (0, (3, 1.2, 1, 1.2)), "^", ""),
    Style("#a11212", (0, (1.2, 1.4)), "X", ""),
)


def memory_by_kind(
    predicted: Callable[[str, int], Any],
    ranks: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    measured: Mapping[tuple[str, int], float] | None = None,
    what: str = "",
    folder: Path | None = None,
) -> Picture:
    """A panel a stage, a bar for each number of ranks: bytes by kind. predicted(stage, N) -> task 14.1's `Memory`;
    measured: {(stage, N): bytes} of peaks, drawn as diamonds."""
    marks = measured or {}
    totals: dict[str, list[float]] = {}
    with styled() as figure:
        fig = figure(WIDTH, 3.3)
        axes = fig.subplots(1, len(STAGE_NAMES), sharey=True)
        for ax, (stage, title) in zip(axes, STAGE_NAMES.items()):
            found = [predicted(stage, N) for N in ranks]
            floor = [0.0] * len(ranks)
            for kind, (color, hatch) in KINDS.items():
                high = [getattr(one, kind) / GB for one in found]
                ax.bar(
                    range(len(ranks)), high, 0.8, bottom=floor, color=color, hatch=hatch, edgecolor=PAPER, linewidth=0.3
                )
                floor = [a + b for a, b in zip(floor, high)]
            totals[stage] = floor
            for (of, N), nbytes in marks.items():
                if of == stage and N in ranks:
                    ax.plot(list(ranks).index(N), nbytes / GB, "D", color=PAPER, markeredgecolor=INK, markersize=6)
            ax.set_title(title)
            ax.set_xticks(range(len(ranks)), [str(N) for N in ranks])
            ax.set_xlabel("ranks")
            ax.grid(axis="x", visible=False)
        axes[0].set_ylabel("GB on a rank")
        from matplotlib.patches import Patch

        shown = [Patch(facecolor=c, hatch=h, edgecolor=PAPER, label=k) for k, (c, h) in KINDS.items()]
        margins(fig, 0.30, 0.95, left=0.075, right=0.99, wspace=0.08)
        fig.legend(handles=shown, loc="lower center", ncols=len(KINDS), fontsize=8, handlelength=1.6, columnspacing=1.1)
        ends = "; ".join(
            f"{STAGE_NAMES[s]} {t[0]:.1f} GB on {ranks[0]}, {t[-1]:.1f} on {ranks[-1]}" for s, t in totals.items()
        )
        beside = "; ".join(f"{STAGE_NAMES[s]} on {N}: {b / GB:.1f} GB" for (s, N), b in marks.items())
        return save(
            fig,
            folder_or_temp(folder),
            "memory_by_kind",
            "What a rank must hold",
            f"Memory of a rank{what}, by kind, for four stages and {ranks[0]} to {ranks[-1]} ranks. {ends}."
            + (f" Measured peaks: {beside}." if beside else ""),
            "Bars: what 14.1 says" + ("; diamonds: peaks that were measured." if marks else "."),
        )


def sawtooths(steps: Mapping[str, Sawtooth], folder: Path | None = None) -> Picture:
    """Memory during one step, a panel for each entry, in copies of the whole model's weights."""
    words = []
    with styled() as figure:
        fig = figure(WIDTH, 2.7)
        axes = fig.subplots(1, len(steps), sharey=True, squeeze=False)[0]
        for ax, (name, step) in zip(axes, steps.items()):
            high = [n / step.model for n in step.samples]
            ax.plot(range(len(high)), high, drawstyle="steps-post", color=LINES[0].color, linewidth=1.2)
            ax.fill_between(range(len(high)), high, step="post", color=GRID)
            peak, before = max(high), high[step.marks[1][0] - 1]
            for at, label in step.marks:
                ax.axvline(at, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
                ax.text(at, 1.0, f" {label}", transform=ax.get_xaxis_transform(), fontsize=7.5, color=MUTED, va="top")
            ax.plot([step.marks[1][0] - 1], [before], "D", color=PAPER, markeredgecolor=INK, markersize=5)
            ax.set_title(f"{name}: {before:.2f} at the forward's end", fontsize=9)
            ax.set_xlabel("operations")
            ax.set_ylim(0, None)
            words.append(f"{name}: at most {peak:.2f}, at the end of the forward {before:.2f}")
        top = max(max(s.samples) / s.model for s in steps.values())
        axes[0].set_ylim(0, 1.18 * top)
        axes[0].set_ylabel("copies of the weights")
        fig.tight_layout(pad=0.5)
        return save(
            fig,
            folder_or_temp(folder),
            "sawtooths",
            "The memory of one step",
            f"Bytes that a rank holds during one step, divided by the weights' of the whole model. {'; '.join(words)}.",
            "Weighed after every operation: weights, gradients, gathered copies; no optimizer. Diamond: forward's end.",
        )


# ---- time lines

LANES = ("compute", "all_gather", "reduce_scatter", "all_reduce")
LANE_NAMES = {"compute": "compute", "all_gather": "gather", "reduce_scatter": "scatter", "all_reduce": "all-reduce"}
Busy = dict[str, list[tuple[float, float, str]]]  # by lane: (begin, end, label), in milliseconds


def busy_on_wire(run: Replay, rank: int = 0) -> Busy:
    """What a rank of a replay computes and what its wire carries: a collective is one bar, from its first message to
    its last."""
    found: Busy = {"compute": [(s.begin * 1e3, s.end * 1e3, s.label) for s in run.spans if s.rank == rank]}
    each = len({s.rank for s in run.spans}) - 1  # messages that a rank sends in a collective: it is a ring
    for kind in {t.kind for t in run.transfers}:
        sent = sorted((t for t in run.transfers if t.src == rank and t.kind == kind), key=lambda t: t.begin)
        whole = [sent[i : i + each] for i in range(0, len(sent), each)] if each else []
        labels = _blocks_of(kind, len(whole), sum(label.startswith("forward") for *_, label in found["compute"]))
        found[kind] = [(ts[0].begin * 1e3, ts[-1].end * 1e3, label) for ts, label in zip(whole, labels)]
    return found


def _blocks_of(kind: str, count: int, L: int) -> list[str]:
    """FSDP's collectives of a step in their order, by the block whose they are: the root's is gathered first and
    scattered last. Empty names where there are not as many as FSDP has."""
    back = list(reversed(range(L)))
    orders = {
        "all_gather": [["", *range(L), *back], ["", *range(L), *back[1:]]],  # the last block may stay
        "reduce_scatter": [[*back, ""]],
    }
    order = next((order for order in orders.get(kind, []) if len(order) == count), [""] * count)
    return [f"{kind[0].upper().replace('A', 'G').replace('R', 'S')}{k}" if k != "" else "" for k in order]


def busy_in_trace(trace: Mapping[str, Any], window: tuple[float, float] | None = None) -> Busy:
    """The kernels of a trace, those of NCCL by collective. window: which part of the step, as shares of it."""
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel" and "dur" in event]
    zero = min(e["ts"] for e in kernels)
    length = max(e["ts"] + e["dur"] for e in kernels) - zero
    low, high = (zero + share * length for share in window or (0.0, 1.0))
    lanes = {"AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "AllReduce": "all_reduce"}
    found: Busy = {"compute": []}
    for e in kernels:
        begin, end = max(e["ts"], low), min(e["ts"] + e["dur"], high)
        if begin >= end:
            continue
        nccl = e["name"].startswith("nccl")
        lane = next((v for k, v in lanes.items() if nccl and k in e["name"]), None if nccl else "compute")
        if lane:
            found.setdefault(lane, []).append(((begin - low) / 1e3, (end - low) / 1e3, ""))
    return found


def timelines(panels: Mapping[str, Busy], folder: Path | None = None) -> Picture:
    """Rows of what runs when, a panel for each entry: computing, and each kind of message below it."""
    words = []
    lanes = {name: [lane for lane in LANES if busy.get(lane)] for name, busy in panels.items()}
    with styled() as figure:
        fig = figure(WIDTH, 0.55 + sum(0.62 + 0.26 * len(rows) for rows in lanes.values()))
        ends = {name: max(b for spans in busy.values() for _, b, _ in spans) for name, busy in panels.items()}
        axes = fig.subplots(len(panels), 1, squeeze=False, height_ratios=[max(1, len(r)) + 0.6 for r in lanes.values()])
        for ax, (name, busy) in zip(axes[:, 0], panels.items()):
            rows = lanes[name]
            for y, lane in enumerate(rows):
                color = LINES[LANES.index(lane)].color
                spans = [(a, b - a) for a, b, _ in busy[lane]]
                edge = 0.4 if len(spans) < 100 else 0.0  # of short kernels the edges would be all that is seen
                ax.broken_barh(spans, (y - 0.38, 0.76), facecolor=color, edgecolor=PAPER, linewidth=edge)
                for begin, end, label in busy[lane] if len(spans) < 40 else ():
                    short = label.replace("forward ", "F").replace("backward ", "B")
                    ax.text((begin + end) / 2, y, short, ha="center", va="center", fontsize=7, color=PAPER)
            end = ends[name]
            alone = sum(b - a for a, b in gaps(busy["compute"], end))
            ax.set_yticks(range(len(rows)), [LANE_NAMES[lane] for lane in rows])
            ax.set_ylim(len(rows) - 0.4, -0.6)
            ax.set_xlim(0, max(ends.values()))  # one axis: lengths can be compared between panels
            ax.grid(axis="y", visible=False)
            ax.set_title(f"{name}: {end:.1f} ms, {alone:.1f} without computing", fontsize=9)
            words.append(f"{name}: {end:.1f} ms, {alone:.1f} of them without computing")
        axes[-1, 0].set_xlabel("milliseconds")
        fig.tight_layout(pad=0.5)
        return save(
            fig,
            folder_or_temp(folder),
            "timelines",
            "Gather, compute, scatter",
            f"What one rank computes and what it sends, against time. {'; '.join(words)}.",
            "F3, B3: forward and backward of block 3; G3: its gather, S3: its gradient's scatter. No name: the root.",
        )


def gaps(busy: Sequence[tuple[float, float, str]], end: float) -> list[tuple[float, float]]:
    """When nothing of this ran, from 0 to `end`."""
    found, reached = [], 0.0
    for begin, stop, _ in sorted(busy):
        if begin > reached:
            found.append((reached, begin))
        reached = max(reached, stop)
    return [*found, (reached, end)] if reached < end else found


def bucket_curve(
    wire: Sequence[tuple[float, float]],
    recorded: Sequence[tuple[float, float]] = (),
    guess: float | None = None,
    folder: Path | None = None,
) -> Picture:
    """Milliseconds of a step that only communicate, against the bucket's MiB: on the virtual wire, and as recorded."""
    panels = {"virtual wire, 4 ranks": list(wire)} | ({"two H200, recorded": list(recorded)} if recorded else {})
    words = []
    with styled() as figure:
        fig = figure(WIDTH, 2.7)
        axes = fig.subplots(1, len(panels), squeeze=False)[0]
        for ax, (name, points), style in zip(axes, panels.items(), LINES):
            x, y = [p[0] for p in points], [p[1] for p in points]
            ax.plot(x, y, **style.marks(len(x), most=len(x)))
            at, low = min(points, key=lambda p: p[1])
            ax.plot([at], [low], "*", color=style.color, markersize=12)
            if guess and name.startswith("virtual"):
                ax.axvline(guess, color=MUTED, linestyle=(0, (2, 2)))
                ax.text(guess, ax.get_ylim()[1], " your guess", fontsize=7.5, color=MUTED, va="top")
            ax.set_xscale("log", base=2)
            ax.set_xticks(x, [f"{v:g}" for v in x], fontsize=7.5)
            ax.minorticks_off()
            ax.set_ylim(0, None)
            ax.set(title=f"{name}: least at {at:g} MiB", xlabel="bucket, MiB")
            words.append(f"{name}: least {low:.2f} ms at {at:g} MiB, {y[0]:.2f} at {x[0]:g}, {y[-1]:.2f} at {x[-1]:g}")
        axes[0].set_ylabel("exposed, ms a step")
        fig.tight_layout(pad=0.5, w_pad=2)
        return save(
            fig,
            folder_or_temp(folder),
            "bucket_curve",
            "How large a bucket?",
            f"Exposed communication of a step against bucket size. {'; '.join(words)}.",
            "Star: the best of those measured.",
        )


def efficiency(rows: Mapping[str, Sequence[tuple[str, float]]], folder: Path | None = None) -> Picture:
    """Where the per cents go: for each run a full bar of 100 %, cut into named shares; the first one is what is
    left."""
    words = []
    labels = list(dict.fromkeys(label for shares in rows.values() for label, _ in shares))
    colors = [color for color, _ in KINDS.values()]
    looks = {label: (colors[k], ("", "//", "\\\\", "xx", "..")[k % 5]) for k, label in enumerate(labels)}
    with styled() as figure:
        fig = figure(WIDTH, 1.1 + 0.5 * len(rows))
        ax = fig.subplots()
        for y, (name, shares) in enumerate(rows.items()):
            at = 0.0
            for label, share in shares:
                color, hatch = looks[label]
                wide = max(0.0, min(share, 100 - at))  # a share below zero has taken its place from the one before
                ax.barh(y, wide, 0.62, left=at, color=color, hatch=hatch, edgecolor=PAPER, linewidth=0.4)
                at += wide
            lost = ", ".join(f"{label} {share:.1f}" for label, share in shares[1:])
            ax.text(1, y, f"{shares[0][1]:.1f} % left; lost: {lost}", va="center", fontsize=8, color=PAPER)
            words.append(f"{name}: {shares[0][1]:.1f} % left, lost {lost}")
        ax.set_yticks(range(len(rows)), list(rows))
        ax.invert_yaxis()
        ax.set_xlim(0, 100)
        ax.grid(axis="y", visible=False)
        ax.set_xlabel("% of the rate of a GPU that trains alone")
        from matplotlib.patches import Patch

        shown = [Patch(facecolor=c, hatch=h, edgecolor=PAPER, label=label) for label, (c, h) in looks.items()]
        fig.tight_layout(pad=0.5, rect=(0, 0.3 / (1.1 + 0.5 * len(rows)), 1, 1))
        fig.legend(handles=shown, loc="lower center", ncols=len(shown), fontsize=8, handlelength=1.6)
        note = "A share below zero: one GPU alone has this cost too. Its gathers are copies, and take time."
        return save(fig, folder_or_temp(folder), "efficiency", "Where the per cents go", "; ".join(words) + ".", note)


def curves(lines: Mapping[str, Sequence[float]], folder: Path | None = None) -> Picture:
    """Losses against steps, on a logarithmic scale."""
    with styled() as figure:
        fig = figure(WIDTH, 2.6)
        ax = fig.subplots()
        for k, ((_, values), style) in enumerate(zip(lines.items(), LINES)):
            ax.plot(range(len(values)), values, **style.marks(len(values), shift=2 * k, most=8))
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set(xlabel="step", ylabel="loss of the whole batch")
        fig.tight_layout(pad=0.5, rect=(0, 0, 0.8, 1))
        label_ends(ax, [(len(v) - 1, v[-1], name, s.color) for (name, v), s in zip(lines.items(), LINES)], size=8)
        ends = "; ".join(f"{name}: {v[0]:.3g} to {v[-1]:.3g}" for name, v in lines.items())
        note = "Curves that coincide have their marks at different steps."
        return save(fig, folder_or_temp(folder), "losses", "Losses", f"Loss against steps. {ends}.", note)

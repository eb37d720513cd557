"""The picture of given/anatomy.py's records: what one message reaches, and who works when in one all-reduce.

`lab results` draws the pictures in results/ again, from the records there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.record.plotting import INK, MUTED, PAPER, WIDTH, Picture, folder_or_temp, save, styled
from week13_allreduce.given import clocks, records
from week13_allreduce.given.records import human

BLUE, ORANGE = "#005a9c", "#b34700"
MARKS = [(BLUE, "-", "o"), ("#007a63", (0, (5, 1.6)), "^"), ("#6a3fb5", (0, (8, 2)), "s")]


def anatomy_picture(
    messages: Mapping[str, Mapping[str, Any]],
    timelines: Sequence[tuple[str, Mapping[str, Any], str]],
    folder: Path | None = None,
) -> Picture:
    """Draw two panels.

    messages: {name: record}; left: GB/s of one ring step against the message's size, a number at a mark where the
        number of channels changes.
    timelines: (title, record, name in its "timelines"); right: rank 0's messages and additions in one all-reduce.
    """
    with styled() as figure:
        fig = figure(WIDTH, 3.7)
        words = [_messages(fig.add_axes([0.075, 0.14, 0.32, 0.74]), messages)]
        words += [_timelines(fig.add_axes([0.585, 0.14, 0.40, 0.74]), timelines)]
        return save(
            fig,
            folder_or_temp(folder),
            "ring_anatomy",
            "Anatomy of a ring",
            " ".join(words),
            "Left: numbers at marks are NCCL's channels. Right: blue, a message; orange, an addition.",
        )


def _messages(ax: Any, of: Mapping[str, Mapping[str, Any]]) -> str:
    words, sizes = [], [1 << 20, 16 << 20, 256 << 20]
    for (name, record), (color, dash, mark) in zip(of.items(), MARKS):
        rows = record["messages"]
        line = [(row["size"], row["size"] / row["seconds"] / 1e9) for row in rows]
        ax.plot(
            *zip(*line),
            color=color,
            linestyle=dash,
            marker=mark,
            linewidth=1.6,
            markersize=4.5,
            markerfacecolor=PAPER,
            markeredgewidth=1.2,
        )
        before, k = None, 0
        for (size, speed), row in zip(line, rows):
            if row["blocks"] != before:
                shift, side = ((5, -9), "left") if color == BLUE else ((-4, 6), "right") if k < 2 else ((1, 7), "left")
                ax.annotate(
                    str(row["blocks"]),
                    (size, speed),
                    textcoords="offset points",
                    color=color,
                    fontsize=8,
                    xytext=shift,
                    ha=side,
                )
                words.append(f"{name}: {row['blocks']} channels and {speed:.0f} GB/s at {human(size)}")
                k += 1
            before = row["blocks"]
    ax.set(xscale="log", ylim=(0, 400), xlim=(sizes[0] / 2, sizes[-1] * 8), ylabel="GB/s")
    ax.set_title("one message, by its size")
    ax.text(0.98, 0.21, "at a mark: channels from there on", transform=ax.transAxes, ha="right", fontsize=7.2)
    ax.set_xticks(sizes, [human(size).replace("iB", "") for size in sizes])
    ax.tick_params(axis="x", which="minor", length=0)
    ax.set_xlabel("message, bytes")
    for k, (name, (color, *_)) in enumerate(zip(of, MARKS)):
        ax.text(0.98, 0.05 + 0.08 * k, name, transform=ax.transAxes, ha="right", color=color, fontsize=8)
    return ". ".join(words) + "."


def _timelines(ax: Any, of: Sequence[tuple[str, Mapping[str, Any], str]]) -> str:
    """Titles may hold line breaks."""
    words, last = [], 0.0
    for y, (title, record, name) in enumerate(of):
        kernels = record["timelines"][name]
        end = max(kernel["end"] for kernel in kernels) * 1e3
        last = max(last, end)
        for kernel in kernels:
            adds = kernel["what"] == "addition"
            ax.barh(
                y + (0.21 if adds else -0.21),
                (kernel["end"] - kernel["begin"]) * 1e3,
                left=kernel["begin"] * 1e3,
                height=0.38,
                color=ORANGE if adds else BLUE,
                edgecolor=PAPER,
                linewidth=0.7,
                zorder=3,
            )
        ax.text(end + 0.25, y - 0.21, f"{end:.1f}", va="center", fontsize=8, color=INK)
        words.append(f"{' '.join(title.split())}: {end:.1f} ms")
    ax.set_yticks(range(len(of)), [title for title, *_ in of])
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(0, last * 1.13), ylim=(len(of) - 0.45, -0.6), xlabel="time on rank 0, ms")
    ax.set_title("one all-reduce of 4 GiB")
    ax.grid(False, axis="y")
    for label in ax.get_yticklabels():
        label.set_color(MUTED)
    for color, what in ((BLUE, "messages"), (ORANGE, "additions")):
        ax.barh([0], [0], color=color, label=what)
    ax.legend(loc="lower right", fontsize=8, ncols=2, bbox_to_anchor=(0.9, 0.79), handlelength=1.0)
    return "; ".join(words) + "."


def pictures(scratch: Path) -> dict[str, Picture]:
    """All pictures of results/, by their names there, drawn into `scratch`."""
    rings = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (records.RESULTS / "ring").glob("*.json")
    }
    plain, first, wide = rings["default"], rings["priority"], rings["chunk-128K-64-channels"]
    sliced = "1 way, 2 slices"
    made = {
        "ring_anatomy": anatomy_picture(
            {"NCCL as it comes": plain, "smaller parts, 64 channels": wide},
            [
                ("library", plain, "library"),
                ("ring, task 13.4", plain, "ring"),
                ("2 slices", plain, sliced),
                ("2 slices,\nNCCL first", first, sliced),
                ("2 slices, NCCL\nfirst, 64 channels", wide, sliced),
            ],
            scratch,
        )
    }
    four = records.recorded()[4]  # the page shows two; its table has the reduce-scatter, too
    four = {**four, "series": [each for each in four["series"] if each["collective"] != "reduce_scatter"]}
    sweep = clocks.busbw_sweep(four, scratch, ("library", "ring", "sliced", "two_way", "pipelined"))
    return made | {f"h200-4-{picture.name}": picture for picture in sweep}

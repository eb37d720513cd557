"""The picture of `lab plan`: plans' steps by part."""

from pathlib import Path

from labkit.errors import LabError
from labkit.plan import explain
from labkit.plan.search import Found
from labkit.record import plotting as plot

KINDS = (
    ("GEMM", ("gemm",), "#005a9c", ""),
    ("attention", ("attention",), "#6a3fb5", ".."),
    ("norms, casts, optimizer", ("elementwise", "casts", "optimizer", "host"), "#b9c0ca", ""),
    ("tensor, context, expert messages", ("tensor", "context", "experts"), "#b34700", "///"),
    ("data-parallel messages", ("data",), "#8a6100", "\\\\\\"),
    ("between stages", ("pipeline",), "#9c1f6d", "--"),
    ("bubble", ("bubble",), "#fefefe", "xx"),
)
HEAD = 1.35  # inches: legend and axis
UNDER = {"facecolor": plot.PAPER, "edgecolor": "none", "pad": 1.0}  # no line of the grid goes through a number
Bar = tuple[str, dict[str, float]]  # a plan's name, and its step's seconds by part


def draw_anatomy(found: Found, rows: list[int], path: Path) -> plot.Picture:
    """Draw a bar for each plan, its step by part, as PATH with .png and .svg."""
    if path.suffix not in ("", ".png", ".svg"):
        raise LabError(f"--figure {path}: a picture is NAME.png; NAME.svg is written beside it")
    several = [(explain.name(found.plan(row)), explain.parts(found.step, row)) for row in rows]
    loss, share = explain.binding(found, rows[0])
    first, last = (float(found.seconds[row]) for row in (rows[0], rows[-1]))
    alt = (
        f"The {len(rows)} best plans on {found.cluster.gpus} GPUs, a bar each. The best, {several[0][0]}, takes "
        f"{first:.3g} s and loses most to {loss} ({100 * share:.0f} %); the last takes {last:.3g} s."
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    return draw_bars(several, path.parent, path.stem, alt)


def draw_bars(several: list[Bar], folder: Path, name: str, alt: str) -> plot.Picture:
    """Draw the same from names and parts."""
    seconds = [sum(of.values()) for _, of in several]
    with plot.styled() as figure:
        fig = figure(plot.WIDTH, HEAD + 0.34 * len(several))
        ax = fig.subplots()
        left = [0.0] * len(several)
        for label, keys, color, hatch in KINDS:
            widths = [sum(of[key] for key in keys) for _, of in several]
            if max(widths) < 0.002 * seconds[0]:
                continue
            look = {"color": color, "hatch": hatch, "edgecolor": plot.INK, "linewidth": 0.4}
            ax.barh(range(len(several)), widths, left=left, height=0.72, label=label, **look)
            left = [a + b for a, b in zip(left, widths)]
        for y, total in enumerate(left):
            ax.annotate(
                f"{total:.3g} s", (total, y), (5, 0), textcoords="offset points", va="center", fontsize=8, bbox=UNDER
            )
        # A plan's name on two lines, cut behind its degrees of data, tensor and pipeline parallelism.
        words = [one.split(".") for one, _ in several]
        names = [".".join(each[:3]) + "\n" + ".".join(each[3:]) for each in words]
        ax.set_yticks(range(len(several)), names, fontsize=7.2)
        ax.invert_yaxis()
        ax.set_xlim(0, max(left) * 1.1)
        ax.set_xlabel("seconds of a step, predicted")
        ax.grid(False, axis="y")
        fig.tight_layout(pad=0.6, rect=(0, 0, 1, 1 - 0.62 / (HEAD + 0.34 * len(several))))
        fig.legend(loc="upper left", ncols=3, fontsize=7.8, bbox_to_anchor=(0.01, 0.995))
        return plot.save(fig, folder, name, "Where the step goes", alt)

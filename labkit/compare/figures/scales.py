"""Scales and amax of every quantised tensor over time, and a heat map of the scales over layers and steps."""

import math
import statistics
from pathlib import Path
from typing import Any

from labkit.compare.arms import QUANTISED, Arm, Probes, short, split_tensor
from labkit.record import plotting as plot

Line = list[tuple[int, float]]  # (step, value)

MANY = 60  # lines in one panel


def scales(arm: Arm, folder: Path, suffix: str = "") -> plot.Picture | None:
    """Scale and amax over the steps, a column a role: all tensors' range, the middle 80 %, the median, the extremes."""
    probes = plot.thin(arm.scales(), 150)
    kinds = _kinds(probes)
    if not kinds:
        return None
    with plot.look() as figure:
        fig = figure(plot.WIDTH, 4.6)
        axes = fig.subplots(2, len(kinds), squeeze=False, sharex=True)
        fig.subplots_adjust(left=0.075, right=0.905, top=0.93, bottom=0.1, wspace=0.62, hspace=0.2)
        clauses = []
        for column, kind in enumerate(kinds):
            for row, key in enumerate(("scale", "amax")):
                ax = axes[row][column]
                logs = {
                    tensor: [(s, math.log2(v)) for s, v in line if 0 < v < math.inf]
                    for tensor, line in _lines(probes, kind, key).items()
                }
                lines = {tensor: line for tensor, line in logs.items() if line}
                if not lines:
                    ax.set_visible(False)
                    continue
                _bundle(ax, lines)
                if row == 0:
                    ax.set_title(kind)
                    first, last = (statistics.median(line[end][1] for line in lines.values()) for end in (0, -1))
                    clauses.append(f"{kind} from 2^{first:.1f} to 2^{last:.1f}")
                else:
                    ax.set_xlabel("step")
                if column == 0:
                    ax.set_ylabel(f"{key} (log2)")
        _shared_span(axes)
        for ax in axes.ravel():
            if ax.get_visible():
                _name_extremes(ax)
        alt = f"Scales of {arm.label} over {len(probes)} probes, median over tensors: {plot.join(clauses)}."
        note = (
            "Grey: the tensors; thick: their median; named: the highest and the lowest at the end. One unit is a "
            "factor of two. All panels of a row span the same number of factors of two."
        )
        return plot.save(fig, folder, f"scales{suffix}", f"Scales and amax: {arm.label}", alt, note)


def heat(arm: Arm, folder: Path, suffix: str = "") -> plot.Picture | None:
    """log2 of every linear's scale (rows) over the steps (columns) against the first probe, one panel a role."""
    probes = plot.thin(arm.scales(), 160)
    kinds = _kinds(probes)
    if not kinds or len(probes) < 2:
        return None
    steps = [s for s, _ in probes]
    grids, rows = {}, []
    for kind in kinds:
        lines = _lines(probes, kind, "scale")
        rows = sorted(lines, key=_by_layer)
        grids[kind] = [_relative(dict(lines[tensor]), steps) for tensor in rows]
    extent = max([abs(v) for v in plot.finite([v for grid in grids.values() for line in grid for v in line])] or [0.0])
    if extent < 1e-6:
        return None  # no scaling, or a fixed one: nothing moves
    extent = max(1, min(math.ceil(extent), 8))
    with plot.look() as figure:
        from matplotlib import colormaps

        # Brown (fell) over white to blue-green (rose): distinct for everybody, and dark at both ends in print.
        colours = colormaps["BrBG"].with_extremes(bad="#9a9a9a")
        fig = figure(plot.WIDTH, max(2.3, min(4.6, 0.9 + 0.035 * len(rows))))
        axes = fig.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
        plot.margins(fig, 0.3, 0.45, left=0.075, right=0.865, wspace=0.06)
        picture = None
        for ax, kind in zip(axes, kinds):
            edges = (-0.5, len(steps) - 0.5, len(rows) - 0.5, -0.5)
            how = {"aspect": "auto", "interpolation": "nearest", "cmap": colours, "vmin": -extent, "vmax": extent}
            picture = ax.imshow(grids[kind], extent=edges, **how)
            ax.set_title(kind)
            ax.set_xlabel("step")
            ax.grid(False)
            places = sorted({round(i * (len(steps) - 1) / 3) for i in range(4)})
            ax.set_xticks(places, [str(steps[i]) for i in places])
            ax.tick_params(axis="y", length=0)
            *_, last = labels = ax.get_xticklabels()
            for label in labels:
                side = "left" if label is labels[0] else "right" if label is last else "center"
                label.set_horizontalalignment(side)
        layers = [split_tensor(t)[0] for t in rows]
        starts = [i for i, layer in enumerate(layers) if i == 0 or layer != layers[i - 1]]
        centres = [(a + b - 1) / 2 for a, b in zip(starts, [*starts[1:], len(rows)])]
        for ax in axes:
            for start in starts[1:]:
                ax.axhline(start - 0.5, color=plot.PAPER, linewidth=1.1)
        names = ["other" if layers[i] is None else str(layers[i]) for i in starts]
        stride = max(1, math.ceil(len(names) / 12))
        axes[0].set_yticks(centres[::stride], names[::stride])
        axes[0].set_ylabel("layer")
        place = axes[-1].get_position()
        bar = fig.colorbar(picture, cax=fig.add_axes([0.885, place.y0, 0.018, place.height]), extend="both")
        most = f"{2**extent:.3g}"
        names = [f"\N{DIVISION SIGN}{most}", "same", f"\N{MULTIPLICATION SIGN}{most}"]
        bar.set_ticks([-extent, 0, extent], labels=names)
        bar.outline.set_visible(False)
        alt = f"Heat map of {arm.label}: no data."
        drops = [
            (line[-1], tensor)
            for kind in kinds
            for tensor, line in zip(sorted(_lines(probes, kind, "scale"), key=_by_layer), grids[kind])
            if math.isfinite(line[-1])
        ]
        if drops:
            (fall, fell), (rise, rose) = min(drops), max(drops)
            alt = (
                f"Heat map of {arm.label}: scale of {len(rows)} linears over {len(steps)} probes against the first; "
                f"the largest fall at the end is {2**fall:.2g} times ({fell}), the largest rise {2**rise:.2g} times "
                f"({rose})."
            )
        note = (
            "Each row is one linear (in a layer from wq down to w2), each column a probe. Against the first probe; a "
            "falling scale means that the values grew."
        )
        return plot.save(fig, folder, f"heat{suffix}", f"Scales over layers and steps: {arm.label}", alt, note)


# ---- parts


def _kinds(probes: Probes) -> list[str]:
    """The roles of the tensors that were cast, of those in the last probe."""
    last = probes[-1][1] if probes else {}
    return [kind for kind in QUANTISED if any(split_tensor(tensor)[2] == kind for tensor in last)]


def _lines(probes: Probes, kind: str, key: str) -> dict[str, Line]:
    out: dict[str, Line] = {}
    for step, stats in probes:
        for tensor, stat in stats.items():
            if split_tensor(tensor)[2] == kind and isinstance(stat.get(key), (int, float)):
                out.setdefault(tensor, []).append((step, stat[key]))
    return out


def _by_layer(tensor: str) -> tuple[bool, int]:
    layer = split_tensor(tensor)[0]
    return layer is None, layer or 0


def _bundle(ax: Any, lines: dict[str, Line]) -> None:
    """Every line if they are few; the range and the middle 80 % if they are many; the median; the two extreme ones."""
    at: dict[int, list[float]] = {}
    for line in lines.values():
        for step, value in line:
            at.setdefault(step, []).append(value)
    steps, at = sorted(at), {step: sorted(values) for step, values in at.items()}

    def quantile(share: float) -> list[float]:
        return [at[s][round(share * (len(at[s]) - 1))] for s in steps]

    if len(lines) <= MANY:
        for line in lines.values():
            ax.plot(*plot.xy(line), color=plot.THIN, linewidth=0.6, alpha=0.8)
    else:
        for cut, alpha in ((0.0, 0.35), (0.1, 0.55)):
            ax.fill_between(steps, quantile(cut), quantile(1 - cut), color=plot.THIN, alpha=alpha, linewidth=0)
    ax.plot(steps, [statistics.median(at[s]) for s in steps], color=plot.INK, linewidth=1.9)
    last = {tensor: line[-1][1] for tensor, line in lines.items()}
    for tensor in dict.fromkeys((min(last, key=lambda t: last[t]), max(last, key=lambda t: last[t]))):
        ax.plot(*plot.xy(lines[tensor]), color=plot.MUTED, linewidth=1.1, linestyle=(0, (3, 1)), label=tensor)


def _name_extremes(ax: Any) -> None:
    named = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
    ends = [(line.get_xdata()[-1], line.get_ydata()[-1], _short(line.get_label()), plot.MUTED) for line in named]
    plot.label_ends(ax, ends, size=8)


def _short(tensor: str) -> str:
    layer = split_tensor(tensor)[0]
    return short(tensor) + (f"\nlayer {layer}" if layer is not None else "")


def _shared_span(axes: Any) -> None:
    """Every panel of a row spans the same number of factors of two, so that slopes can be compared."""
    for row in axes:
        shown = [ax for ax in row if ax.get_visible()]
        span = max([1.0, *(ax.dataLim.height for ax in shown)]) * 1.12
        for ax in shown:
            middle = (ax.dataLim.y0 + ax.dataLim.y1) / 2
            ax.set_ylim(middle - span / 2, middle + span / 2)
            ax.yaxis.set_major_locator(plot.ticks(5, whole=True))


def _relative(line: dict[int, float], steps: list[int]) -> list[float]:
    first = next((line[s] for s in steps if line.get(s, 0) > 0 and math.isfinite(line[s])), None)
    ok = [line.get(s, math.nan) for s in steps]
    return [math.log2(v / first) if first and v > 0 and math.isfinite(v) else math.nan for v in ok]

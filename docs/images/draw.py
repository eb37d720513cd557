"""Draws the pictures of README.md and CONTRIBUTING.md anew: .venv/bin/python -m docs.images.draw [NAME ...]

    autopsy.svg       what four ranks print that all receive first, really run
    chunk-grid.png    a ring all-reduce of three ranks, really run, by week 13's own picture
    class-page.png    what `make demo` grades, `grade publish`, a screenshot by headless Chromium; needs both
    house.svg         the rooms and their order, from the import contracts in pyproject.toml

Each holds its alt text, which the pages show. The verdict's figure is not among them: `lab results` draws it.
"""

from __future__ import annotations

import html
import io
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from labkit.errors import LabError

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SHOT = (900, 795)  # pixels: the class's figure, and the first behaviour
COLOURS = 32  # of a screenshot: text and one figure

INK, MUTED, PAPER, FRAME = "#20242b", "#5b626e", "#fefefe", "#b9c0ca"
GROUNDS = {"week": "#f3e6da", "grading": "#f1dede", "labkit": "#e4ebe3", "use": "#dce8f2"}
ROOMS = {  # what each room is about, and which group's colour it has
    "cli": ("the lab command", "use"),
    "notebook": ("what notebooks import", "use"),
    "doctor": ("what can this machine run?", "use"),
    "crossover": ("on which shapes does FP8 pay?", "use"),
    "compare": ("is FP8 worth it?", "use"),
    "plan": ("which degrees?", "use"),
    "watch": ("is the run healthy?", "use"),
    "checks": ("how a task is judged", "labkit"),
    "train": ("the one training loop", "labkit"),
    "parallel": ("one model on many ranks", "labkit"),
    "precision": ("what a linear computes in", "labkit"),
    "model": ("the one decoder", "labkit"),
    "record": ("run folders, measuring, plotting", "labkit"),
    "comm": ("groups, ranks, ledger, autopsy, virtual wire", "labkit"),
    "reload": ("a saved module, imported anew", "labkit"),
    "strict": ("settings: unknown keys are refused", "labkit"),
    "errors": ("LabError: what went wrong, in one sentence", "labkit"),
}


RING = """\
import torch
from labkit.comm import run_ranks

def shift(x, group):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    got = group.recv(src=left, like=x)
    group.send(x, dst=right)
    return got

run_ranks(lambda group: shift(torch.ones(4), group), size=4, backend="threads")
"""


def autopsy() -> str:
    from rich.console import Console
    from rich.text import Text

    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "ring.py").write_text(RING)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "ring.py"], cwd=scratch, env=env, capture_output=True, text=True)
    report = "RanksFailed" + done.stderr.partition("autopsy.RanksFailed")[2].rstrip()
    cause, _, rest = report.partition("\n")
    console = Console(record=True, width=86, file=io.StringIO())
    console.print(Text("$ python ring.py", style="bold"), Text(cause, style="bold #ff9a9a"), Text(rest), sep="\n")
    alt = f"A terminal. A ring of four ranks hangs, and this is printed. {cause.partition(': ')[2]}"
    # Rich's own frame takes its font from another host, which neither GitHub nor a page without a network loads.
    frame = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n<title>'
        + html.escape(alt)
        + "</title>\n<style>.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace; }}"
        "\n{styles}</style>\n<defs><clipPath id='{unique_id}-clip-terminal'><rect width='{terminal_width}' "
        "height='{terminal_height}'/></clipPath>{lines}</defs>\n{chrome}<g transform='translate({terminal_x}, "
        "{terminal_y})' clip-path='url(#{unique_id}-clip-terminal)'>{backgrounds}<g class='{unique_id}-matrix'>"
        "{matrix}</g></g></svg>\n"
    )
    svg = console.export_svg(title="a deadlock, explained", code_format=frame, unique_id="autopsy")
    (HERE / "autopsy.svg").write_text(svg, encoding="utf-8")
    return alt


def chunk_grid() -> str:
    from labkit.compare.pages import small
    from week13_allreduce import collectives
    from week13_allreduce.given import experiments, pictures

    with tempfile.TemporaryDirectory() as scratch:
        picture = pictures.chunk_grid(experiments.filling(collectives.ring_all_reduce, N=3), Path(scratch))
        (HERE / "chunk-grid.png").write_bytes(small(picture))
    return picture.alt


def class_page() -> str:
    from PIL import Image, PngImagePlugin

    if not (browser := next(filter(None, map(shutil.which, BROWSERS)), None)):
        raise LabError(f"no browser draws the class's page: install one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as folder:
        scratch, made = Path(folder), Path(folder) / "class"
        for words in (("-m", "grading.demo", made), ("-m", "grading.cli", "publish", "week13", "--class", made)):
            subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL)
        size, shot = "{},{}".format(*SHOT), scratch / "class.png"
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}")
        page = (made / "published" / "week13" / "class.html").as_uri()
        subprocess.run([browser, *flags, f"--screenshot={shot}", page], check=True, stderr=subprocess.DEVNULL)
        students = len(list((made / "submitted" / "week13").glob("*.zip")))
        alt = (
            f"The top of the class's page for week 13, {students} made-up students. A bar for each behaviour that was "
            "most often failed or left blank, in per cent of the students. Below, the most common mistake of the "
            "first, in one sentence."
        )
        inside, out = PngImagePlugin.PngInfo(), io.BytesIO()
        inside.add_text("Description", alt)
        with Image.open(shot) as image:
            image.convert("RGB").quantize(COLOURS).save(out, "PNG", optimize=True, pnginfo=inside)
    (HERE / "class-page.png").write_bytes(out.getvalue())
    return alt


def house() -> str:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = next(one["layers"] for one in contracts if one.get("containers") == ["labkit"])
    tops = next(one["layers"] for one in contracts if "layers" in one and "containers" not in one)
    layers = [layer.split(" | ") for layer in rooms if layer != "__main__"]
    text_of = {
        "grading": "release, sandbox, marks, gradebook; knows weeks by name only",
        "capstone": "one trainer, assembled from the weeks' parts",
    }
    lines, y, height = [], 46, 30

    def box(x: float, y: float, width: float, name: str, words: str, ground: str) -> None:
        lines.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height - 6}" rx="4" fill="{GROUNDS[ground]}"/>'
            f'<text x="{x + 10}" y="{y + 16}"><tspan font-weight="700">{name}</tspan>'
            f'<tspan fill="{MUTED}" dx="8">{html.escape(words)}</tspan></text>'
        )

    for name in (top for top in tops if top != "labkit"):
        ground = "grading" if name == "grading" else "week"
        box(40, y, 640, name, text_of.get(name, "tasks, solutions, tests, records"), ground)
        y += height
    y += 26
    begin, y = y, y + 26
    for layer in layers:
        width = (616 - 8 * (len(layer) - 1)) / len(layer)
        for place, name in enumerate(layer):
            box(52 + place * (width + 8), y, width, name, *ROOMS[name])
        y += height
    frame = f'<rect x="40" y="{begin}" width="640" height="{y - begin + 4}" rx="6" fill="none" stroke="{FRAME}"/>'
    words = f'<text x="52" y="{begin + 18}" font-weight="700">labkit: imports no week</text>'
    arrow = (
        f'<path d="M20 46 V{y - 8}" stroke="{INK}" stroke-width="1.5"/>'
        f'<path d="M14 {y - 10} L20 {y + 2} L26 {y - 10} Z" fill="{INK}"/>'
    )
    alt = (
        f"The house. On top {', '.join(top for top in tops if top != 'labkit')}. Below them labkit's rooms, from the "
        f"top: {', '.join(' and '.join(layer) for layer in layers)}. Imports run downwards only."
    )
    (HERE / "house.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {y + 20}" width="720" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12.5" fill="{INK}">\n<title>{html.escape(alt)}</title>\n'
        f'<rect width="720" height="{y + 20}" fill="{PAPER}"/>\n'
        f'<text x="40" y="30" fill="{MUTED}">Imports run downwards only. Nothing imports what stands above it.</text>\n'
        + "\n".join([arrow, frame, words, *lines])
        + "\n</svg>\n",
        encoding="utf-8",
    )
    return alt


if __name__ == "__main__":
    drawers = {"autopsy": autopsy, "chunk-grid": chunk_grid, "class-page": class_page, "house": house}
    for name in sys.argv[1:] or drawers:
        print(f"{name}: {drawers[name]()}")

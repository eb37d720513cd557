"""`lab results`: pages NAME.md made from NAME.md.j2 beside them, every number, table and figure from a record.

`{# numbers: week16_fp8.given.findings #}` in the first line names modules whose names fill blanks, beside `Page`'s.
"""

import html
import importlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from labkit.compare import summary
from labkit.compare.arms import arm_rows
from labkit.compare.figures import loss, rates
from labkit.compare.terminal import markdown_table
from labkit.errors import LabError
from labkit.record.files import explained, replace_file
from labkit.record.plotting import DARK, Picture
from labkit.record.read import RunData, read_run
from labkit.record.schema import Verdict

TEMPLATE = ".j2"
PACKAGES = {"torch": "torch", "transformer-engine": "Transformer Engine", "torchao": "torchao", "nccl": "NCCL"}
DOTS = 30  # of one colour, from which on it is kept exactly
COLOURS = 40  # of a figure on a page: flat colours and their edges need no more, and the file is a third


class Page:
    """One template's page. Its public methods fill blanks; names of records are relative to the page's folder."""

    def __init__(self, template: Path, scratch: Path):
        self.template, self.folder, self.scratch = template, template.parent, scratch
        self.figures: dict[Path, bytes] = {}

    def run(self, name: str) -> RunData:
        """The record of a run."""
        return read_run(self.folder / name)

    def load(self, name: str) -> Any:
        """A record that is one JSON file."""
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def provenance(self, name: str) -> str:
        """One line: date, hardware, versions, commit, command."""
        record = self.load(name) if name.endswith(".json") else self.run(name).run
        versions, hardware = record.get("versions", {}), record.get("hardware", record.get("note", ""))
        if isinstance(hardware, dict) and (gpus := hardware["gpus"]):
            hardware = f"{f'{len(gpus)} ' if gpus[1:] else ''}{gpus[0]['name']}, driver {gpus[0]['driver']}"
        elif isinstance(hardware, dict):
            hardware = f"{hardware['cpu']['model']}, {hardware['cpu']['cores']} cores"
        parts = [str(record.get("started") or record["date"])[:10], hardware]
        parts += [f"{said} {versions[key]}" for key, said in PACKAGES.items() if key in versions]
        parts += [f"Python {versions['python']}"] if "python" in versions else []
        parts += [f"commit {versions['commit']}"] if "commit" in versions else []
        command = record.get("command") or record.get("how", {}).get("compare", "")
        return f"*{'; '.join(filter(None, parts))}.*" + (f" `{command}`" if command else "")

    def seconds(self, name: str) -> float:
        """How long a run took by the clock, from its first line to its verdict."""
        began, ended = (datetime.fromisoformat(self.run(name).run[key]) for key in ("started", "finished"))
        return (ended - began).total_seconds()

    def tables(self, name: str) -> str:
        """A comparison's tables: speed, then losses, whichever it measured."""
        return summary.markdown(self.folder / name)

    def figure(self, name: str, what: str) -> str:
        """A comparison's "gap" or "milliseconds", drawn into figures/."""
        data = self.run(name)
        results = data.comparison.results
        if what == "gap":
            picture = loss.gap(arm_rows(data), results.verdict or Verdict(), self.scratch)
        else:
            picture = rates.milliseconds(results.timed.values(), self.scratch)
        return self.show(picture, f"figures/{name}-{what}")

    def show(self, picture: Picture | None, name: str) -> str:
        """A drawn picture, kept as NAME.png with its alt text inside; below it how to read it."""
        if picture is None:
            raise LabError(f"{self.template}: the record holds nothing to draw for {name}")
        self.figures[self.folder / f"{name}.png"] = small(picture)
        return f"![{picture.alt}]({name}.png)" + (f"\n\n*{picture.note}*" if picture.note else "")

    def picture(self, name: str, width: int) -> str:
        """An SVG that is there, `width` pixels wide, with the alt text inside it."""
        title = re.search(r"<title>(.*?)</title>", (self.folder / name).read_text(encoding="utf-8"), re.DOTALL)
        alt = html.unescape(title[1]) if title else ""
        return f'<img src="{name}" width="{width}" alt="{html.escape(alt)}">'

    @staticmethod
    def table(heads: list[str], rows: list[list[Any]]) -> str:
        return markdown_table(heads, [[str(cell) for cell in row] for row in rows])

    @staticmethod
    def span(values: Iterable[float], form: str) -> str:
        """ "2 to 8", least and most."""
        low, *_, high = sorted((values := list(values)) * 2)
        return " to ".join(dict.fromkeys((format(low, form), format(high, form))))

    @staticmethod
    def both(values: Iterable[float], form: str) -> str:
        """ "2 and 8", in their order."""
        return " and ".join(format(value, form) for value in values)

    def text(self) -> str:
        """The page. LabError names the template and what is wrong in it."""
        import jinja2

        source = self.template.read_text(encoding="utf-8")
        names = {name: getattr(self, name) for name in vars(Page) if not name.startswith("_") and name != "text"}
        names |= {"scratch": self.scratch, "min": min, "max": max}  # scratch: where a picture is drawn, to be shown
        if found := re.match(r"\{#-? numbers: ([\w. ]+?) -?#\}", source):
            if "" not in sys.path:
                sys.path.insert(0, "")
            for module in found[1].split():
                names |= vars(importlib.import_module(module))
        room = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
        room.filters["f"] = format  # {{ rate|f(",.0f") }}
        try:
            return room.from_string(source).render(names)
        except (jinja2.TemplateError, KeyError, OSError) as error:
            raise LabError(f"{self.template}: {type(error).__name__}: {error}") from error


def small(picture: Picture) -> bytes:
    """A picture's PNG in COLOURS, its alt text kept inside."""
    import numpy as np
    from PIL import Image, PngImagePlugin

    with Image.open(picture.png) as whole:
        image: Any = whole.convert("RGB")
    # The named ones are kept exactly: a quantizer merges what is rare, and a thin line would change its arm.
    dots = np.asarray(image).reshape(-1, 3)
    colours, of, counts = np.unique(dots, axis=0, return_inverse=True, return_counts=True)
    every = {tuple(bytes.fromhex(name[1:])) for name in DARK}
    often = {tuple(colour) for colour, count in zip(colours.tolist(), counts) if count >= DOTS}
    named = sorted(often & every)
    rest = image.quantize(COLOURS - len(named), dither=Image.Dither.NONE).getpalette()[: 3 * (COLOURS - len(named))]
    palette = np.array([*named, *np.reshape(rest, (-1, 3)).tolist()])
    nearest = ((colours[:, None].astype(int) - palette) ** 2).sum(-1).argmin(1)  # Pillow's own search is coarse
    few = Image.fromarray(nearest[of].reshape(image.size[::-1]).astype(np.uint8))
    few.putpalette(palette.astype(np.uint8).tobytes())
    inside, out = PngImagePlugin.PngInfo(), io.BytesIO()
    inside.add_text("Description", picture.alt)
    few.save(out, "PNG", optimize=True, pnginfo=inside)
    return out.getvalue()


def templates(course: Path) -> list[Path]:
    """All templates of pages; those of results/ first, whose figures docs/ and README show."""
    results = {path for top in ("results", "*/results") for path in course.glob(f"{top}/**/*.md{TEMPLATE}")}
    return [*sorted(results), *sorted([*course.glob(f"docs/*.md{TEMPLATE}"), *course.glob(f"*.md{TEMPLATE}")])]


def words_of(png: Path | bytes) -> str | None:
    """The alt text inside a picture, which its records give; None where there is no picture."""
    from PIL import Image

    if isinstance(png, Path) and not png.is_file():
        return None
    with Image.open(io.BytesIO(png) if isinstance(png, bytes) else png) as image:
        return str(image.info.get("Description"))


def command(folder: Path | None, pack: bool, check: bool, redraw: bool) -> int:
    """What `lab results` does. Returns 1 if --check found a page that is not what its records say."""
    if pack:
        from labkit.record.packed import pack as pack_runs

        if folder is None:
            raise LabError("--pack needs the folder whose runs are to be packed")
        print(f"{folder}: {pack_runs(folder)} runs packed")
        return 0
    course = folder or Path()
    page = Path(f"{str(course).removesuffix(TEMPLATE)}{TEMPLATE}")
    if not (found := templates(course) if course.is_dir() else [page] if page.is_file() else []):
        raise LabError(f"there is no *.md{TEMPLATE} in {course}: run this from the course's root folder")
    stale = 0
    for template in found:
        page = template.with_suffix("")
        with tempfile.TemporaryDirectory() as scratch:
            made = Page(template, Path(scratch))
            text = made.text()
        same = page.exists() and page.read_text(encoding="utf-8") == text
        stale += not same
        print(f"{page}: {'unchanged' if same else 'differs' if check else 'written'}")
        for path, content in {page: text.encode(), **made.figures}.items() if not check else ():
            # Each machine rounds a picture's dots in its own way: one that says the same stays as it is.
            if path != page and not redraw and words_of(path) == words_of(content):
                continue
            with explained(path):
                path.parent.mkdir(exist_ok=True)
                replace_file(path, content)
    return int(check and stale > 0)

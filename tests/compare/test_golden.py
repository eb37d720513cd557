"""One committed record of each shape, and all that is said of it: terminal, Markdown, page. The texts in golden/ are what
a reader saw when they were last looked at.

    python -m tests.compare.test_golden        writes them anew; read the difference before you commit it
"""

import html
import io
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from labkit.compare import report
from labkit.compare.summary import markdown, show
from labkit.errors import LabError
from labkit.record.read import read_run

ROOT, GOLDEN = Path(__file__).parents[2], Path(__file__).with_name("golden")
SHAPES = {
    "repeated": "results/2026-11-23-cpu-demo",
    "one-run-of-each-arm": "week16_fp8/results/2026-11-22-h200-whole",
    "speed-alone": "week16_fp8/results/2026-11-24-h100-largest",
    "paused": "week16_fp8/results/2026-11-23-h100-safety",
    "gate-closed": "week16_fp8/results/2026-11-22-h200-two-stage",
    "failed": "week16_fp8/results/2026-11-22-h200-8b-levers/three",
    "without-a-verdict": "week16_fp8/results/2026-11-22-h200-scaling-once/alone",
    "one-training": "results/2026-11-23-cpu-demo/arms/fp8",
}


def said(name: str, folder: Path) -> str:
    """Everything that is said of this record, as text. folder: where it may be copied to."""
    place = folder / "run"
    if (ROOT / SHAPES[name]).is_dir():
        shutil.copytree(ROOT / SHAPES[name], place, ignore=shutil.ignore_patterns("figures", "*.html"))
    else:  # an arm that was packed
        shutil.copy(ROOT / f"{SHAPES[name]}.jsonl.gz", folder / "run.jsonl.gz")
    run, parts = read_run(place), []
    if run.is_comparison:
        console = io.StringIO()
        show(place, Console(file=console, width=200))
        parts.append(console.getvalue().replace(str(place), "RUN"))
        try:
            parts.append(markdown(place))
        except LabError as error:
            parts.append(str(error).replace(str(place), "RUN"))
    settings = r"<details><summary>Configuration</summary>.*?</details>"
    page = re.sub(rf"(?s)<style>.*?</style>|<wbr>|{settings}", "", report._render(run, [], []))
    lines = html.unescape(re.sub(r"<(?:/?(?:strong|small|code|span|td|th)\b[^>]*)>", " ", page))
    lines = re.sub(r"<[^>]+>", "\n", lines)
    parts.append("\n".join(filter(None, (" ".join(line.split()) for line in lines.splitlines()))))
    return "\n\n".join("\n".join(line.rstrip() for line in part.splitlines()) for part in parts) + "\n"


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_said_of_a_record_stays_as_it_was_read(name, tmp_path):
    assert said(name, tmp_path) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in SHAPES:
        with tempfile.TemporaryDirectory() as scratch:
            (GOLDEN / f"{each}.txt").write_text(said(each, Path(scratch)), encoding="utf-8")

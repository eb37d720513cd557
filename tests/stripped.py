"""A week's folder as students get it, for tests that change it or run in it."""

import shutil
from pathlib import Path

from labkit.checks.markers import strip, strip_notebook


def strip_folder(source: str | Path, target: str | Path) -> list[Path]:
    """Copy a week's folder with its solutions taken out; `target` must not exist. Returns the files that had blanks."""
    source, target = Path(source), Path(target)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", ".pytest_cache"))
    changed = []
    for path in sorted(target.rglob("*")):
        how = {".py": strip, ".ipynb": strip_notebook}.get(path.suffix)
        if how is not None and path.is_file():
            before = path.read_text(encoding="utf-8")
            after = how(before, str(path.relative_to(target.parent)))
            if after != before:
                path.write_text(after, encoding="utf-8")
                changed.append(path)
    return changed

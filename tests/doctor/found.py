"""What the doctor's tests share: one check by its name, and a package that is not one."""

from pathlib import Path

from labkit.doctor.findings import Check


def one(checks, name: str) -> Check:
    """The check of that name; there is exactly one."""
    (found,) = [check for check in checks if check.name == name]
    return found


def fake(folder: Path, name: str, text: str) -> None:
    """A package on disk whose import runs `text`."""
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)

"""Where checkpoints lie: a folder that all ranks see, as labkit.train.manifest has it, behind five calls.

    step-00000200/              published: it got this name in one step, after everything in it was on the disk
    step-00000300.partial/      being written, or what a killed save left: no step that `steps` names

The checks put a store of their own in its place.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

from labkit.train import manifest


class Store(Protocol):
    """What a save and a load may do."""

    def put(self, step: int, name: str, data: bytes) -> None:
        """Write a file of a step that is not published yet; on the disk when it returns. OSError, a full disk say."""

    def publish(self, step: int) -> None:
        """The step is there from now on, whole, in the place of an older one of its number."""

    def discard(self, step: int) -> None:
        """Throw away what was put and not published."""

    def steps(self) -> list[int]:
        """The published steps, the newest first."""

    def get(self, step: int, name: str) -> bytes:
        """A file of a published step. OSError if it cannot be read."""


class Folder:
    """A Store on the disk; see above. keep: how many published steps stay."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def put(self, step: int, name: str, data: bytes) -> None:
        partial = self._partial(step)
        partial.mkdir(parents=True, exist_ok=True)
        manifest.write_durably(partial / name, data)

    def publish(self, step: int) -> None:
        manifest.publish(self._partial(step), self.folder / manifest.folder_name(step))
        for old in manifest.whole_steps(self.folder)[self.keep :]:
            manifest.retire(self.folder / manifest.folder_name(old))

    def discard(self, step: int) -> None:
        shutil.rmtree(self._partial(step), ignore_errors=True)

    def steps(self) -> list[int]:
        return manifest.whole_steps(self.folder)

    def get(self, step: int, name: str) -> bytes:
        return (self.folder / manifest.folder_name(step) / name).read_bytes()

    def _partial(self, step: int) -> Path:
        return self.folder / (manifest.folder_name(step) + manifest.PARTIAL)

"""What a page shows: the runs of one folder with their alarms, read once however many pages poll."""

import threading
import time
from pathlib import Path

from labkit.errors import LabError
from labkit.watch.alarms import Judge
from labkit.watch.folder import Folder, Record, at_work, runs_in
from labkit.watch.mine import make_rules
from labkit.watch.past import Alarm

RESCAN = 5.0  # seconds between two searches for further runs of a comparison


class Source:
    """The runs of one folder, read on by whoever polls. mine: the student's rules judge them, too. LabError: no run."""

    def __init__(self, path: Path, mine: bool = False) -> None:
        self.path, self.folders, self.more = path, runs_in(path), make_rules if mine else list
        self._open: dict[Path, tuple[Folder, Record | None, Judge]] = {}
        self._lock, self._scanned = threading.Lock(), time.monotonic()
        if not self.folders:
            raise LabError(f"{path} has trained nothing yet: watch it once its first arm has begun")

    def names(self) -> list[str]:
        """List the trainings, in the order of the comparison; one, for a single run."""
        if len(self.folders) > 1 or (self.path not in self.folders.values() and self.path.is_dir()):
            with self._lock:
                if time.monotonic() - self._scanned > RESCAN:
                    self.folders, self._scanned = runs_in(self.path), time.monotonic()
        return list(self.folders)

    def poll(self, name: str) -> tuple[str, Record, list[Alarm]]:
        """Return (name, record, alarms) of a training as it stands now; name "": of the one at work."""
        name = name if name in self.folders else at_work(self.folders) or ""
        path = self.folders[name]
        with self._lock:
            folder, judged, judge = self._open.get(path) or (Folder(path), None, Judge())
            record = folder.poll()
            if record is not judged:  # what was judged, if anything, is void
                judge = Judge(self.more())
            self._open[path] = folder, record, judge
            return name, record, judge.judge(record)

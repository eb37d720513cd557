"""Autograde is off in this course.

nbgrader's Autograde, one click in formgrader, would run the submission in the instructor's account without isolation
and put what that claims over the marks of `grade run`. Its configuration names the class that reads notebooks; ours
refuses to be made. That happens before Autograde has read or deleted a file, and where this module cannot be imported
Autograde fails as well.
"""

from typing import Any

from nbconvert.exporters import NotebookExporter
from nbgrader.converters.base import NbGraderException


class NoAutograde(NotebookExporter):
    """The `c.Autograde.exporter_class` of this course's nbgrader_config.py."""

    def __init__(self, *, parent: Any = None, **kwargs: Any) -> None:
        directory = getattr(parent, "coursedir", None)
        assignment = getattr(directory, "assignment_id", "") or "WEEK"
        message = (
            f"Autograde is off in this course, and nothing was changed. Marks are made in a sandbox: run "
            f"'grade run {assignment}' in a terminal, then 'grade mark {assignment}'."
        )
        if getattr(parent, "log", None):
            parent.log.error(message)  # formgrader shows the log first
        raise NbGraderException(message)

"""`grade forget`: remove everything that is stored of one student, and nothing of anyone else.

Each place is removed by itself, and the gradebook's rows in one transaction. Killed in between, the same command finds
what is left, since places.py looks for names and keeps no list.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grading.reports.places import Place, Places
from labkit.errors import LabError

if TYPE_CHECKING:
    from grading.gradebook.course import Course


def forget(student: str, places: Places) -> Iterator[Place]:
    """Remove the places one after the other; yields each when it is gone. LabError if one cannot be removed."""
    for place in places.found:
        if place.is_rows:
            _forget_rows(places.course, student)
        else:
            _remove(place.path)
        yield place


def size(path: Path) -> tuple[int, int]:
    """(files, bytes) at a path; links are counted and not followed."""
    if path.is_symlink() or not path.is_dir():
        return 1, path.lstat().st_size
    files = [inner for inner in path.rglob("*") if inner.is_symlink() or not inner.is_dir()]
    return len(files), sum(inner.lstat().st_size for inner in files)


def rows_of(book: Any, id: str) -> Iterator[Any]:
    """A student's rows in nbgrader's gradebook, what hangs on others first."""
    from nbgrader.api import Comment, Grade, Student, SubmittedAssignment, SubmittedNotebook

    submissions = book.db.query(SubmittedAssignment).filter(SubmittedAssignment.student_id == id).all()
    for submission in submissions:
        sheets = book.db.query(SubmittedNotebook).filter(SubmittedNotebook.assignment_id == submission.id).all()
        for sheet in sheets:
            for kind in (Grade, Comment):
                yield from book.db.query(kind).filter(kind.notebook_id == sheet.id).all()
            yield sheet
        yield submission
    yield from book.db.query(Student).filter(Student.id == id).all()


def _remove(path: Path) -> None:
    """A file, a link (not what it points to), or a folder with what is in it; links inside are not followed."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise LabError(
            f"{error.filename or path} cannot be removed ({error.strerror}): get the right to, and run the "
            "same command again; it removes the rest"
        ) from None


def _forget_rows(course: Course, student: str) -> None:
    """Delete the rows in one transaction, and what SQLite keeps of deleted rows in free pages."""
    from sqlalchemy.exc import SQLAlchemyError

    from grading.gradebook.names import gradebook_id

    try:
        with course.one_writer(), course.gradebook() as book:
            sqlite = book.engine.dialect.name == "sqlite"
            if sqlite:
                book.db.connection().exec_driver_sql("PRAGMA secure_delete=ON")
            for row in list(rows_of(book, gradebook_id(student))):
                book.db.delete(row)
                book.db.flush()
            book.db.commit()
            if sqlite:  # older versions of comments and scores are in free pages, too
                with book.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.exec_driver_sql("VACUUM")
    except SQLAlchemyError as error:
        raise LabError(
            f"the gradebook in {course.root} could not be changed ({type(error).__name__}): close "
            "formgrader, and run the same command again"
        ) from None

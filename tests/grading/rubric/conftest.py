"""The small course of the gradebook's tests."""

from tests.grading.gradebook.conftest import course, marks, source, template, week

__all__ = ["course", "marks", "source", "template", "week"]

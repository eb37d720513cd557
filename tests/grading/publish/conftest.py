"""The class of forty, made once, and one of six."""

import pytest

from grading.register.standing import standings
from tests.grading.publish.aclass import CANVAS, LATE, MOODLE, WEEK, a_class, forty, hand_in, hand_points, mark


@pytest.fixture(scope="session")
def klass(tmp_path_factory):
    """Where the forty stand."""
    with forty(tmp_path_factory.mktemp("class") / "autumn") as cls:
        return standings(cls, WEEK)


@pytest.fixture
def six(tmp_path):
    """Anna has all points, Ben is to be marked, Cleo was too late, Dan is not graded, Eva excused, Fay missing."""
    people = ["anna", "ben", "cleo", "dan", "eva", "fay"]
    with a_class(tmp_path / "autumn", people, LATE + '[excused]\nweek13 = ["eva"]\n') as opened:
        hand_points(opened, hand_in(opened, "anna", mark("13.5 GB/s")), "13.7", 10)
        hand_in(opened, "ben", mark(), days_late=1)
        hand_in(opened, "cleo", mark(), days_late=30)
        hand_in(opened, "dan")
        yield opened


@pytest.fixture(params=["canvas", "moodle"])
def system(request):
    return request.param


@pytest.fixture
def exported(system):
    """What the platform exports: Canvas' gradebook, Moodle's worksheet."""
    return CANVAS if system == "canvas" else MOODLE

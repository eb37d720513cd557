"""A small course, a class of it, and nbgrader's directory in it. All of this needs nbgrader, an instructor's extra."""

import importlib.util
import shutil

import pytest

from labkit.checks.tasks import find_weeks
from tests.grading.marking.samples import make
from tests.grading.publish.aclass import a_class

NBGRADER = importlib.util.find_spec("nbgrader") is not None


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """(the small course, its course directory), made once: nbgrader takes seconds to make a database."""
    if not NBGRADER:
        pytest.skip("nbgrader is not installed: pip install '.[grading]'")
    from grading.marking.course import make as make_course

    root = tmp_path_factory.mktemp("marking")
    source = make(root / "source")
    make_course(root / "gradebook", find_weeks(source))
    return source, root / "gradebook"


@pytest.fixture
def source(template, tmp_path):
    """The small course, to be changed."""
    shutil.copytree(template[0], tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def cls(template, source, tmp_path):
    """A class of four in which nobody has handed in, with its course directory."""
    shutil.copytree(template[1], tmp_path / "class" / "gradebook")
    rules = '[comments]\nunits = "State the unit of every number."\n'
    with a_class(tmp_path / "class", ["anna", "ben", "cleo", "dan"], rules, find_weeks(source)) as opened:
        yield opened


@pytest.fixture
def week(cls):
    return cls.week("week91")


@pytest.fixture
def course(cls):
    from grading.marking.course import open_course

    return open_course(cls.folder / "gradebook")


@pytest.fixture
def api(course):
    """nbgrader's own application interface, as formgrader uses it."""
    from nbgrader.apps.api import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config.loader import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(course.root)).load_config()
    config.Exchange.root = str(course.root / "exchange")
    return NbGraderAPI(coursedir=CourseDirectory(config=config), config=config)

"""One field of attack for each test file; skipped where the kernel gives no sandbox."""

import pytest

from tests.grading.sandbox.attacking import Field


@pytest.fixture(scope="session", autouse=True)
def _isolation(sandbox):
    pass


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    made = Field(tmp_path_factory.mktemp("field"))
    yield made
    made.close()

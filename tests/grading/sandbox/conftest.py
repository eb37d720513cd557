"""One field of attack for each test file; skipped where the kernel gives no sandbox."""
from __future__ import annotations

import pytest

from labkit.probes import grading as probes
from tests.grading.sandbox.attacking import Field


@pytest.fixture(scope="session", autouse=True)
def _isolation():
    lacking = [check.detail for check in probes.sandbox() if not check.ok]
    if lacking:
        pytest.skip(f"no sandbox on this machine: {lacking[0]}")
    from grading.sandbox.isolation import missing
    if why := missing():        # the machine has all that is needed: then this is a failure, and nothing to skip
        pytest.fail(f"no sandbox starts here: {why}")


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    made = Field(tmp_path_factory.mktemp("field"))
    yield made
    made.close()

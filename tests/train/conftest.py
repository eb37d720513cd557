"""Rank processes, started once for all tests of a file."""

import pytest

from labkit.comm.ranks import RankPool


@pytest.fixture(scope="module")
def one():
    with RankPool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def two():
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def pools(one, two):
    return {1: one, 2: two}

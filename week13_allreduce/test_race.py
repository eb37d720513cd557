"""The race's entry, for no points: `lab check 13.13`. `lab race` takes its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.checks import task
from labkit.checks.race import race_of
from labkit.checks.tasks import load_week

race = race_of(load_week(Path(__file__).parent))


@task("13.13", points=0)
@pytest.mark.parametrize("track", list(race.TRACKS))
def test_race_entry(track, seed):
    """Right on this track, and within the rules"""
    race.lap(track, seed)

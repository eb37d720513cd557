"""What names tell: one table of examples, and any name at all."""

import unicodedata
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grading.intake.arrival import Key
from grading.intake.guesses import EXAMPLES, another_assignments, gradescope, plain, readings
from grading.intake.names import clean, harmless, printable, same_letters, shown
from grading.intake.stamps import read_stamp

BERLIN = ZoneInfo("Europe/Berlin")


def read(name, week):
    return readings(name.rstrip("/"), name.endswith("/"), week, BERLIN)


@pytest.mark.parametrize("name, how, keys, file", EXAMPLES)
def test_the_table_of_examples(week, name, how, keys, file):
    found = read(name, week)
    exact = [key for guess in found for key in guess.keys if key.platform != "name"]
    assert [" ".join(filter(None, (key.platform, key.value, key.assignment))) for key in exact] == keys
    assert how.split() == ([found[0].how, *(["late"] if found[0].late else [])] if found else [])
    assert (found[0].file if found else "") == file


def test_only_the_weeks_own_exchange_folders_are_read_and_plain_names(week):
    other = "bob+week92+2026-11-20 17:00:00.0 UTC+zzzzzzzzzzzz"
    assert another_assignments(other) and not read(f"{other}/", week) and not another_assignments("bob+week92+soon")
    assert plain("dora.tar.gz", False).label == "dora" and plain("a.b", True).label == "a.b"
    assert {key.platform for key in plain("a@x.org.zip", False).keys} == {"id", "email", "name"}
    assert unicodedata.is_normalized("NFC", Key("id", "Jose\u0301").row[2])


@pytest.mark.parametrize(
    "text, time",
    [
        ("2026-11-20 17:30:00.123456 UTC", datetime(2026, 11, 20, 17, 30, 0, 123456, UTC)),
        ("2026-11-20 17:30:00 +0530\n", datetime(2026, 11, 20, 12, 0, tzinfo=UTC)),
        ("2026-06-22 10:00:00.000000 +03", datetime(2026, 6, 22, 7, tzinfo=UTC)),
        ("2026-11-20 17:30:00 -01:00", datetime(2026, 11, 20, 18, 30, tzinfo=UTC)),
        ("2026-06-22 09:00:00.000000 EDT", datetime(2026, 6, 22, 13, tzinfo=UTC)),
        ("2026-07-20 17:30:00 Europe/Zurich", datetime(2026, 7, 20, 15, 30, tzinfo=UTC)),
        ("2026-11-20T17:30:00+01:00", datetime(2026, 11, 20, 16, 30, tzinfo=UTC)),
        ("2026-11-20 17:30:00", datetime(2026, 11, 20, 17, 30, tzinfo=UTC)),
        ("", None),
        ("0001-01-01 00:00:00 +2300", None),
        ("2026-11-20 17:30:00 ../../etc/passwd", None),
        ("2026-11-20 17:30:00 IST", None),  # India's, Israel's or Ireland's
    ],
)
def test_stamps(text, time):
    found, why = read_stamp(text, BERLIN)
    assert found == time and bool(why) == (time is None)


def test_an_abbreviation_of_the_classs_own_zone_is_that_zones():
    kolkata, berlin = ZoneInfo("Asia/Kolkata"), datetime(2026, 10, 25, 2, 30)
    assert read_stamp("2026-11-20 17:30:00 IST", kolkata)[0] == datetime(2026, 11, 20, 12, tzinfo=UTC)
    for called, offset in (("CEST", 2), ("CET", 1)):  # the hour that is there twice
        assert read_stamp(f"{berlin} {called}", BERLIN)[0] == berlin.replace(tzinfo=UTC) - timedelta(hours=offset)


@given(
    st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata"]),
)
def test_nbgraders_own_stamps_come_back(when, zone):
    when = when.replace(tzinfo=ZoneInfo(zone))
    if when.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) == when.replace(tzinfo=None):  # it exists
        assert read_stamp(when.strftime("%Y-%m-%d %H:%M:%S.%f %Z"), ZoneInfo(zone))[0] == when.astimezone(UTC)


@given(st.text(max_size=300))
def test_no_metadata_breaks_the_reader(text):
    gradescope(text)
    gradescope("submission_1:\n  :submitters:\n  - :name: " + text)


def test_a_name_in_a_sentence_cannot_act():
    assert shown("a\nb\x1b[31m\u202egnp.py") == "a\\nb\\x1b[31m\\u202egnp.py" and len(shown("x" * 5000)) < 130
    assert printable("a\nan\x1b[2Jna\u202egnp.py") == "a\nan\\x1b[2Jna\\u202egnp.py"


@given(st.text(st.characters(), max_size=30))
def test_every_name_can_be_shown_and_kept(name):
    assert shown(name).isprintable() and unicodedata.is_normalized("NFC", clean(name))
    clean(name).encode()  # text that a file can hold
    assert same_letters(name, name)
    harmless(name)

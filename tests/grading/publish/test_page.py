"""Strangers' text made harmless, and files written whole."""

import os

import pytest

from grading.publish import page
from labkit.errors import LabError


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07x", "red x"),
        ("bell\x07 and nul\x00", "bell\u2407 and nul\u2400"),
        ("10%\r20%\r\ndone", "10%\n20%\ndone"),
        ("abc\u202egnp.exe", "abc\u27e8U+202E\u27e9gnp.exe"),
        ("half \ud83d", "half \\ud83d"),
        ("\u05d3\u05e0\u05d4, Zoë, 李雷", "\u05d3\u05e0\u05d4, Zoë, 李雷"),
    ],
)
def test_what_is_visible(text, shown):
    assert page.visible(text) == shown


def test_a_diagnosis_does_not_tell_where_the_grader_works():
    assert page.here("rank 0 calls x at /var/lib/grade me/w1/week13_allreduce/a.py:3: no") == (
        "rank 0 calls x at /var/lib/grade me/w1/week13_allreduce/a.py:3: no"
    ), "a path with spaces is not recognised"
    assert page.here("at /tmp/box-1/week13_allreduce/a.py:3: no") == "at week13_allreduce/a.py:3: no"
    assert page.here('File "/srv/capstone/main.py", line 3') == 'File "capstone/main.py", line 3'
    assert page.here("at /home/me/course/labkit/checks/bare.py:122 (x)") == "at labkit/checks/bare.py:122 (x)"
    assert page.here("/home/me/.venv/lib/python3.12/site-packages/torch/_a.py:1") == "site-packages/torch/_a.py:1"
    assert page.here("week13_allreduce/a.py:3 and 1/2") == "week13_allreduce/a.py:3 and 1/2"


def test_a_page_is_written_whole_and_not_for_everybody(tmp_path):
    path = page.write(tmp_path / "deep" / "a.html", "one\r\n")
    page.write(path, "two\ud800")
    assert path.read_bytes() == b"two\\ud800"
    assert [p.name for p in path.parent.iterdir()] == ["a.html"]
    assert path.stat().st_mode & 0o007 == 0


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="choose another place"):
        page.write(tmp_path / "file" / "a.html", "x")
    os.makedirs(tmp_path / "folder.html")
    with pytest.raises(LabError, match="choose another place"):
        page.write(tmp_path / "folder.html", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.html"]


def test_points_and_counts_in_words():
    assert page.of(12.50, 15) == "12.5 of 15" and page.of(None, 20.0) == "\u2013 of 20"
    assert page.join(["a", "b", "c"]) == "a, b and c" and page.join([]) == ""
    assert page.count(1, "student") == "1 student" and page.count(2, "mark comes", "marks come") == "2 marks come"

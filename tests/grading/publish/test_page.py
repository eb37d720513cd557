"""Strangers' text made harmless, and files written whole."""

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


@pytest.mark.parametrize(
    "text, shown",
    [
        ("at /tmp/box-1/week13_allreduce/a.py:3: no", "at week13_allreduce/a.py:3: no"),
        ('File "/srv/capstone/main.py", line 3', 'File "capstone/main.py", line 3'),
        ("at /home/me/course/labkit/checks/bare.py:122 (x)", "at labkit/checks/bare.py:122 (x)"),
        ("/home/me/.venv/lib/python3.12/site-packages/torch/_a.py:1", "site-packages/torch/_a.py:1"),
        ("week13_allreduce/a.py:3 and 1/2", "week13_allreduce/a.py:3 and 1/2"),
    ],
)
def test_a_diagnosis_does_not_tell_where_the_grader_works(text, shown):
    assert page.here(text) == shown


def test_a_page_is_written_whole_and_not_for_everybody_or_the_place_is_named(tmp_path):
    path = page.write(tmp_path / "deep" / "a.html", "one\r\n")
    page.write(path, "two\ud800")
    assert path.read_bytes() == b"two\\ud800" and path.stat().st_mode & 0o007 == 0
    (tmp_path / "folder.html").mkdir()
    for place in (path / "a.html", tmp_path / "folder.html"):
        with pytest.raises(LabError, match="choose another place"):
            page.write(place, "x")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.html", "deep", "folder.html"]


def test_any_name_is_one_folder_of_its_own():
    names = ("anna@x.org", "Zoë", "..", ".", " ", "a/b", "a%2Fb", "C:\\x", "\x00")
    folders = [page.folder_name(name) for name in names]
    assert len(set(folders)) == len(names) and folders[:2] == ["anna@x.org", "Zoë"]
    assert not any(folder in ("", ".", "..") or set(folder) & set("/\\\x00") for folder in folders)

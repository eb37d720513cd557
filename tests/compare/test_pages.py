"""`lab results`: templates, what fills their blanks, and what is refused."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from labkit.cli import app
from labkit.compare.pages import Page, small
from labkit.errors import LabError
from labkit.record.plotting import CANDIDATES, save, styled

RECORD = {
    "date": "2026-11-22",
    "hardware": {"cpu": {"model": "EPYC", "cores": 2}, "gpus": []},
    "versions": {"torch": "2.13.0", "python": "3.11.7", "commit": "abc"},
    "command": "lab check week13",
    "runs": [3, 1, 2],
}


@pytest.fixture
def course(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "one.json").write_text(json.dumps(RECORD))
    return tmp_path


def template(course, text):
    path = course / "results" / "README.md.j2"
    path.write_text(text)
    return path


def results(*words):
    return CliRunner().invoke(app, ["results", *map(str, words)])


def test_holes_are_filled_from_the_record(course):
    blanks = ("provenance('one.json')", "span(load('one.json')['runs'], '.1f')", "both([1, 2], 'd')")
    template(course, "".join(f"{{{{ {blank} }}}}\n" for blank in blanks))
    assert results(course).exit_code == 0
    shown, *numbers = (course / "results" / "README.md").read_text().splitlines()
    assert shown == "*2026-11-22; EPYC, 2 cores; torch 2.13.0; Python 3.11.7; commit abc.* `lab check week13`"
    assert numbers == ["1.0 to 3.0", "1 and 2"]


def test_check_writes_nothing_and_tells_what_differs(course):
    template(course, "{{ load('one.json')['runs']|sum }}\n")
    page = course / "results" / "README.md"
    page.write_text("7\n")
    done = results("--check", course)
    assert done.exit_code == 1 and "README.md: differs" in done.output and page.read_text() == "7\n"
    assert results(course).exit_code == 0 and page.read_text() == "6\n"
    for one in (course, page, f"{page}.j2"):
        assert results("--check", one).exit_code == 0


@pytest.mark.parametrize(
    "text, shown",
    [
        ("{{ nothing }}", "'nothing' is undefined"),
        ("{{ load('one.json')['gone'] }}", "gone"),
        ("{{ load('other.json') }}", "other.json"),
        ("{% if %}", "TemplateSyntaxError"),
    ],
)
def test_a_hole_that_nothing_fills_is_an_error_that_names_the_template(course, tmp_path, text, shown):
    with pytest.raises(LabError, match=r"README\.md\.j2") as error:
        Page(template(course, text), tmp_path).text()
    assert shown in str(error.value)


def test_a_picture_becomes_small_and_keeps_its_alt_text_and_a_thin_lines_colour(tmp_path):
    """A quantizer merges what is rare: BF16's frame was drawn in the green of an FP8 recipe."""
    with styled() as figure:
        fig = figure(7.4, 3.0)
        ax = fig.subplots()
        ax.imshow(np.linspace(0, 1, 4000).reshape(40, 100), aspect="auto", cmap="viridis")
        ax.plot([0, 99], [20, 20], color=CANDIDATES[0], linewidth=1.0)
        picture = save(fig, tmp_path, "map", "A map", "A map and a line.")
    (tmp_path / "small.png").write_bytes(small(picture))
    assert (tmp_path / "small.png").stat().st_size < picture.png.stat().st_size
    with Image.open(tmp_path / "small.png") as image, Image.open(picture.png) as before:
        assert image.text["Description"] == "A map and a line." and image.size == before.size
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert tuple(bytes.fromhex(CANDIDATES[0][1:])) in colours and len(colours) <= 40


def test_outside_of_the_course_and_without_a_folder_to_pack_it_says_so(tmp_path):
    for words, shown in ((["results", str(tmp_path)], "course's root folder"), (["results", "--pack"], "--pack needs")):
        with pytest.raises(LabError, match=shown):
            CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_picture_that_says_the_same_stays_as_it_is(course, monkeypatch):
    """Machines round its dots differently: every run of `lab results` changed two of them."""

    def small_of(colour, alt):
        with styled() as figure:
            fig = figure(2, 1)
            fig.patch.set_facecolor(colour)
            return small(save(fig, course, "square", "Square", alt))

    template(course, "{{ show(none, 'square') }}\n")
    picture = course / "results" / "square.png"
    for colour, alt, words, drawn in (
        ("#102030", "one", [], True),
        ("#203040", "one", [], False),
        ("#203040", "one", ["--redraw"], True),
        ("#304050", "two", [], True),
    ):
        made, before = small_of(colour, alt), picture.read_bytes() if picture.is_file() else b""
        monkeypatch.setattr(Page, "show", lambda self, *_, made=made: self.figures.update({picture: made}) or "")
        assert results(course, *words).exit_code == 0
        assert picture.read_bytes() == (made if drawn else before), (colour, alt, words)

"""A student's pictures: what is in them stays, what hangs on them does not get in."""

import base64
import io
import json

import pytest

from grading.publish import pictures as module
from grading.publish.pictures import MAX_SIDE, own_pictures
from grading.publish.pictures import clean_png as clean
from tests.grading.publish.pngs import SIGNATURE, chunk, header, png


def figure(**save):
    import matplotlib.image
    import numpy

    out = io.BytesIO()
    pixels = numpy.random.default_rng(0).integers(0, 255, (20, 30, 4), dtype=numpy.uint8)
    matplotlib.image.imsave(out, pixels, format="png", **save)
    return out.getvalue(), pixels


def test_a_real_figure_comes_back_pixel_by_pixel_without_its_texts():
    import matplotlib.image

    data, pixels = figure(metadata={"Author": "secret author", "Software": "x"})
    cleaned, width, height = clean(data)
    assert (width, height) == (30, 20) and b"secret author" in data and b"secret author" not in cleaned
    assert b"tEXt" not in cleaned and b"pHYs" not in cleaned
    assert ((matplotlib.image.imread(io.BytesIO(cleaned)) * 255).round() == pixels).all()


def test_interlaced_palette_grey_and_one_bit_pictures_are_read_by_a_browser_s_library_too():
    from PIL import Image

    for mode, kind in (("P", {}), ("L", {}), ("1", {}), ("LA", {}), ("RGB", {}), ("RGBA", {}), ("I;16", {})):
        out = io.BytesIO()
        Image.new(mode, (13, 7)).save(out, format="PNG", **kind)
        cleaned, *_ = clean(out.getvalue())
        again = Image.open(io.BytesIO(cleaned))
        again.load()
        assert again.size == (13, 7), mode
    # Adam7 of 3 x 2 pixels in RGB: passes of 1x1, 1x1 (x = 2), 1x1 ... by the standard's table 8.2
    rows = [(1, 1), (1, 1), (1, 1), (3, 1)]  # (columns, rows) of the passes that are not empty: 1, 4, 6, 7
    raw = b"".join(b"\0" * (r * (1 + 3 * c)) for c, r in rows)
    cleaned, *_ = clean(png(raw=raw, interlace=1))
    Image.open(io.BytesIO(cleaned)).load()


@pytest.mark.parametrize(
    "more",
    [
        chunk(b"tEXt", b"a\0<script>"),
        chunk(b"iCCP", b"profile"),
        chunk(b"acTL", b"\0" * 8),
        chunk(b"zzZz", b"anything"),
    ],
)
def test_other_chunks_and_what_follows_the_end_are_left_out(more):
    plain = clean(png())[0]
    assert clean(png(more=more))[0] == plain
    assert clean(png(after=b"PK\x03\x04 a zip behind the picture"))[0] == plain


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"GIF89a", b"<svg onload='x()'/>", SIGNATURE, SIGNATURE + header(), png()[:-6], png()[:-20],
        png().replace(b"IDAT", b"IDAX"), SIGNATURE + header() + chunk(b"IEND"), png(more=header()),
        SIGNATURE + chunk(b"IDAT") + header() + chunk(b"IEND"), png(width=0), png(width=MAX_SIDE + 1, height=1),
        png(5000, 5000, raw=b""), png(depth=7), png(colour=5), png(colour=3), png(more=chunk(b"PLTE", b"12")),
        png(more=chunk(b"PLTE", b"123") * 2), png(interlace=2), png(colour=2, more=chunk(b"tRNS", b"x" * 300)),
        png(raw=b"\0" * 5), png(raw=b"\0" * 50), png(tail=b"hidden behind the pixels"),
        SIGNATURE + header() + chunk(b"IDAT", b"no zlib") + chunk(b"IEND"), png()[:40] + b"\0" + png()[41:],
        png()[:-1] + b"\0", png()[:30] + b"\0\0\0" + png()[33:],
    ],
    ids=lambda data: f"{len(data)} bytes",
)  # fmt: skip
def test_what_is_no_whole_picture_is_none(bad):
    assert clean(bad) is None


def test_a_bomb_is_not_unpacked_to_its_end(monkeypatch):
    import tracemalloc
    import zlib

    bomb = png(raw=b"\0" * 50_000_000)  # 50 kB that unpack to 50 MB; the header promises 3 x 2
    unpacked = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self):
            self.inner = real()

        def decompress(self, data, most):
            unpacked.append(len(piece := self.inner.decompress(data, most)))
            return piece

        def __getattr__(self, name):
            return getattr(self.inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    tracemalloc.start()
    assert clean(bomb) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(unpacked) == 1 and peak < 8_000_000  # one piece of 1 MiB, the input and its copies


def notebook(*outputs, source="## Three clocks"):
    cells = [
        {"cell_type": "markdown", "source": ["# Lab\n", source]},
        {"cell_type": "code", "source": "x", "outputs": list(outputs)},
    ]
    return json.dumps({"cells": cells}).encode()


def shown(data: bytes):
    return {
        "output_type": "display_data",
        "data": {
            "image/png": base64.encodebytes(data).decode().splitlines(True),
            "text/html": "<script>alert(1)</script>",
        },
    }


def test_pictures_of_the_notebook_come_first_and_say_where_they_stood():
    files = {"b.png": png(5, 5), "other.ipynb": notebook(shown(png(6, 6))), "w/lab.ipynb": notebook(shown(png(7, 7)))}
    found, left = own_pictures(files)
    assert [p.width for p in found] == [7, 6, 5] and not left
    assert found[0].alt == "Your picture 1: code cell 1 of lab.ipynb, under “Three clocks”."
    assert found[2].alt == "Your picture 3: the file b.png."
    assert base64.b64decode(found[0].source.removeprefix("data:image/png;base64,")) == clean(png(7, 7))[0]


def test_svg_broken_and_double_ones_are_left_out_with_a_reason():
    svg = {"output_type": "display_data", "data": {"image/svg+xml": "<svg onload='x()'/>"}}
    found, left = own_pictures({"lab.ipynb": notebook(shown(png()), svg, shown(png()), shown(b"none")), "a.PNG": png()})
    assert len(found) == 1
    assert left == [
        "1 picture left out here: SVG can hold more than a picture.",
        "1 picture left out here: too large, or no whole PNG.",
    ]


def test_there_is_a_limit_for_one_picture_and_for_all(monkeypatch):
    many = {f"{n:02}.png": png(n + 1, 1) for n in range(module.MOST + 3)}
    found, left = own_pictures(many)
    assert len(found) == module.MOST and left[0].startswith("3 pictures left out here: more than 12")
    monkeypatch.setattr(module, "MAX_BYTES", len(png(2, 1)))
    found, left = own_pictures({"large.png": png(2, 1, after=b"x"), "small.png": png(2, 1)})
    assert [p.alt for p in found] == ["Your picture 1: the file small.png."] and len(left) == 1
    monkeypatch.setattr(module, "MAX_TOTAL", 100)
    assert len(own_pictures({"a.png": png(2, 1), "b.png": png(3, 1)})[0]) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"cells": 3}',
        b'{"cells": [1, null, {"cell_type": "code", "outputs": 3}]}',
        b'{"cells": [{"cell_type": "code", "outputs": [5, {"data": {"image/png": 7}}, {"data": {"image/png": "a"}}]}]}',
        b'{"cells": [{"cell_type": "markdown", "source": {"a": 1}}]}',
        '{"cells": []}'.encode("utf-16"),
        b'{"cells": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_a_broken_notebook_is_no_error(data):
    found, _ = own_pictures({"lab.ipynb": data, "a.png": png()})
    assert len(found) == 1


def test_the_heading_is_capped_and_cannot_speak_for_the_page():
    found, _ = own_pictures({"lab.ipynb": notebook(shown(png()), source="# \u202e" + "long " * 50)})
    assert len(found[0].alt) < 160 and "\u202e" not in found[0].alt

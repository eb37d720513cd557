"""A student's own pictures: PNG outputs of their notebook and PNG files they handed in, read as data.

The notebook is JSON and is never run. Only PNG gets in; SVG and HTML outputs can be active, and are left out. Whatever
is wrong with a file is a sentence, never an error.

A PNG is checked and rebuilt from its picture alone; no image library reads it here. It is a signature and chunks:
length, type, bytes, CRC. Only five chunk types make the picture: IHDR (size and pixel format), PLTE (palette), tRNS
(transparency), IDAT (compressed pixels), IEND. Everything else (texts, profiles, animation, what was appended) is left
out. The pixels are decompressed once, with a limit, to see that they are what the header promises, and thrown away.

Source: PNG Specification, W3C Recommendation 2003 (ISO/IEC 15948), sections 5, 8.2 (interlace), 11.
"""

import base64
import binascii
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from grading.intake.names import is_notebook
from grading.marking.inert import joined
from grading.publish.page import count, one_line

MOST = 12  # pictures on one page
MAX_BYTES = 1_500_000  # of one picture; a matplotlib figure has 20 to 150 kB
MAX_TOTAL = 6_000_000  # of all of them: the page is sent by mail
MAX_NOTEBOOK = 40_000_000

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_SIDE = 10_000
MAX_PIXELS = 16_000_000  # 4000 x 4000: a figure at 200 dots per inch has 2 million
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


@dataclass(frozen=True)
class OwnPicture:
    """`data` is a clean PNG, `alt` says where it stood: nobody here knows what it shows."""

    data: bytes
    width: int
    height: int
    alt: str

    @property
    def source(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.data).decode()


def own_pictures(files: Mapping[str, bytes], notebook: str = "lab.ipynb") -> tuple[list[OwnPicture], list[str]]:
    """Pictures of a submission's files (path -> bytes), and sentences on what was left out.

    The week's notebook comes first, then other notebooks, then PNG files by name."""
    found: list[OwnPicture] = []
    left: dict[str, int] = {}
    total = 0
    for data, where in _candidates(files, notebook, left):
        cleaned = clean_png(data) if 0 < len(data) <= MAX_BYTES else None
        if cleaned is None:
            _more(left, "too large, or no whole PNG")
        elif any(cleaned[0] == other.data for other in found):
            continue
        elif len(found) == MOST or total + len(cleaned[0]) > MAX_TOTAL:
            _more(left, f"more than {MOST} pictures or {MAX_TOTAL // 10**6} MB")
        else:
            found.append(OwnPicture(*cleaned, f"Your picture {len(found) + 1}: {where}."))
            total += len(cleaned[0])
    return found, [f"{count(many, 'picture')} left out here: {why}." for why, many in left.items()]


def _candidates(files: Mapping[str, bytes], notebook: str, left: dict[str, int]) -> Iterator[tuple[bytes, str]]:
    notebooks = sorted(
        (path for path in files if is_notebook(path)), key=lambda path: (PurePosixPath(path).name != notebook, path)
    )
    for path in notebooks:
        yield from _of_notebook(files[path], PurePosixPath(path).name, left)
    for path in sorted(path for path in files if path.lower().endswith(".png")):
        yield files[path], f"the file {one_line(path, 80)}"


def _of_notebook(data: bytes, name: str, left: dict[str, int]) -> Iterator[tuple[bytes, str]]:
    try:
        cells = json.loads(data.decode("utf-8-sig"))["cells"] if len(data) <= MAX_NOTEBOOK else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # the mark's own notes tell of a broken notebook
    heading, number = "", 0
    for cell in cells if isinstance(cells, list) else ():
        if not isinstance(cell, dict):
            continue
        if cell.get("cell_type") == "markdown":
            titles = re.findall(r"^#{1,6}\s+(.+?)\s*#*$", joined(cell.get("source"))[:20_000], re.M)
            heading = one_line(titles[-1], 80) if titles else heading
        number += cell.get("cell_type") == "code"
        outputs = cell.get("outputs")
        for output in outputs if isinstance(outputs, list) else ():
            kinds = output.get("data") if isinstance(output, dict) else None
            if not isinstance(kinds, dict):
                continue
            if "image/png" in kinds:
                try:
                    picture = base64.b64decode(joined(kinds["image/png"])[: 2 * MAX_BYTES])
                except (binascii.Error, ValueError):
                    picture = b""
                yield picture, f"code cell {number} of {name}" + (f", under \u201c{heading}\u201d" if heading else "")
            elif "image/svg+xml" in kinds:
                _more(left, "SVG can hold more than a picture")


def _more(left: dict[str, int], why: str) -> None:
    left[why] = left.get(why, 0) + 1


def clean_png(data: bytes) -> tuple[bytes, int, int] | None:
    """(PNG, width, height) with nothing in it but the picture; None if it is none, broken, or too large."""
    try:
        return _clean(data)
    except (struct.error, zlib.error, ValueError):
        return None


def _clean(data: bytes) -> tuple[bytes, int, int]:
    chunks = list(_chunks(data))
    kinds = [kind for kind, _ in chunks]
    if not kinds or kinds[0] != b"IHDR" or kinds.count(b"IHDR") != 1 or kinds[-1] != b"IEND" or b"IDAT" not in kinds:
        raise ValueError("the chunks are no picture")
    header = chunks[0][1]
    width, height, depth, colour, method, filters, interlace = struct.unpack(">IIBBBBB", header)
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise ValueError("the size")
    if depth not in _DEPTHS.get(colour, ()) or method or filters or interlace > 1:
        raise ValueError("the pixel format")
    palette = [body for kind, body in chunks if kind == b"PLTE"]
    clear = [body for kind, body in chunks if kind == b"tRNS"]
    if (
        len(palette) > 1
        or len(clear) > 1
        or (colour == 3 and not palette)
        or (palette and (colour in (0, 4) or len(palette[0]) % 3 or not 0 < len(palette[0]) <= 768))
        or (clear and (colour in (4, 6) or len(clear[0]) > 256))
    ):
        raise ValueError("the palette")
    pixels = b"".join(body for kind, body in chunks if kind == b"IDAT")
    want = _size(width, height, depth * _CHANNELS[colour], interlace)
    unpacking = zlib.decompressobj()
    got = 0
    while not unpacking.eof:  # piece by piece: never more than 1 MiB of it in memory
        piece = unpacking.decompress(pixels, 2**20)
        pixels = unpacking.unconsumed_tail
        got += len(piece)
        if got > want or (not piece and not unpacking.eof):
            raise ValueError("the pixels")
    if got != want or unpacking.unused_data:
        raise ValueError("the pixels")
    parts = [
        (b"IHDR", header),
        *((b"PLTE", body) for body in palette),
        *((b"tRNS", body) for body in clear),
        *((kind, body) for kind, body in chunks if kind == b"IDAT"),
        (b"IEND", b""),
    ]
    return SIGNATURE + b"".join(_chunk(kind, body) for kind, body in parts), width, height


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not data.startswith(SIGNATURE):
        raise ValueError("no PNG")
    at = len(SIGNATURE)
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        (crc,) = struct.unpack_from(">I", data, at + 8 + length)
        if crc != zlib.crc32(kind + body):
            raise ValueError("a damaged chunk")
        yield kind, body
        at += 12 + length
        if kind == b"IEND":
            return


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _size(width: int, height: int, bits: int, interlace: int) -> int:
    """Bytes of the unpacked pixels: each row has one byte for its filter; Adam7 has seven small pictures."""
    passes = _ADAM7 if interlace else ((0, 0, 1, 1),)
    total = 0
    for x, y, dx, dy in passes:
        columns, rows = -(-(width - x) // dx), -(-(height - y) // dy)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total

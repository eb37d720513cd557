"""PNG files made by hand: good ones, and every kind of bad one."""

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def header(width=3, height=2, depth=8, colour=2, interlace=0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))


def png(
    width=3, height=2, *, more: bytes = b"", after: bytes = b"", raw: bytes | None = None, tail: bytes = b"", **kind
) -> bytes:
    """A picture of zeros in RGB; `more` stands before the pixels, `tail` in their chunk, `after` behind the end."""
    raw = b"\0" * (height * (1 + 3 * width)) if raw is None else raw
    pixels = chunk(b"IDAT", zlib.compress(raw) + tail)
    return SIGNATURE + header(width, height, **kind) + more + pixels + chunk(b"IEND") + after

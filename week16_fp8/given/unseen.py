"""16.1 on a format that nobody has seen: the check draws its fields, and puts it into FORMATS. It holds no expected
value, and runs where torch cannot be imported."""

from __future__ import annotations

from week16_fp8 import formats

NAME = "unseen"


def both(what, known, fmt, unseen, fields):
    """`formats.decode` or `encode` of `known` in the format `fmt`, and of `unseen` in one that has these fields: two
    arrays. Where the second raises: what it raised, as text."""
    function = getattr(formats, what)
    first = function(known, fmt)
    formats.FORMATS[NAME] = formats.Format(NAME, **fields)
    try:
        return first, function(unseen, NAME)
    except NotImplementedError:
        raise
    except Exception as error:
        return first, f"{type(error).__name__}: {error}"

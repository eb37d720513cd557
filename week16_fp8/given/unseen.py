"""16.1 on a format that nobody has seen: the check draws its fields, and puts it into FORMATS. It holds no expected
value, and runs where torch cannot be imported."""

from __future__ import annotations

import numpy as np

from week16_fp8 import formats

NAME = "unseen"


def both(what, known, fmt, unseen, fields):
    """`formats.decode` or `encode` of `known` in the format `fmt`, and of `unseen` in one that has these fields: two
    arrays, and that of one number of `known` alone, of shape (). Where the last two raise: what, as text."""
    function = getattr(formats, what)
    first = function(known, fmt)
    formats.FORMATS[NAME] = formats.Format(NAME, **fields)
    one = tried(function, known.reshape(-1)[:1].reshape(()), fmt)
    return first, tried(function, unseen, NAME), one if isinstance(one, str) else np.asarray(one).reshape(1)


def tried(function, x, fmt):
    try:
        return function(x, fmt)
    except NotImplementedError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"

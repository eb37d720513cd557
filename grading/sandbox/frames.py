"""What a rank says, read as data: heads, tensors and texts that a student's code may have chosen.

Nothing here trusts a type, a size or a character. What breaks a rule is `Broken`, in words.
"""

import math
import re
from typing import Any

import torch

from labkit.comm.link import MAX_BODY

# What terminals and browsers obey instead of showing: control characters, and those that turn the direction of text.
_CONTROL = re.compile(
    r"[^\x20-\x7e\n\t\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    r"|[\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
_KINDS = ("raised", "unfinished", "memory")


class Broken(Exception):
    """A rank broke the rules of the connection: in words."""


def clean(text: Any, limit: int) -> str:
    """Text from a rank, for people: no control characters (terminals obey them), not longer than `limit`."""
    if not isinstance(text, str):
        raise ValueError("text")
    text = _CONTROL.sub("\ufffd", text)
    return text if len(text) <= limit else text[:limit] + " ..."


def line(text: Any, limit: int) -> str:
    return clean(text, limit).replace("\n", " ")


def typed(dtype: Any, shape: Any) -> tuple[torch.dtype, list[int], int]:
    """A dtype by its name, a shape, and their bytes."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if (
        not isinstance(found, torch.dtype)
        or dtype.startswith("q")
        or not isinstance(shape, list)
        or len(shape) > 16
        or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
    ):
        raise Broken("a tensor that is none")
    length = math.prod(shape) * found.itemsize
    if length > MAX_BODY:
        raise Broken(f"a tensor of {length} bytes")
    return found, shape, length


def tensor_of(body: bytearray, start: int, length: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """A tensor of its own memory, from `length` bytes of a message."""
    if start + length > len(body):
        raise Broken("a message that is shorter than it says")
    if not length:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(body, dtype=torch.uint8, count=length, offset=start)
    return flat.clone().view(dtype).reshape(shape)


def failure(head: dict[str, Any]) -> dict[str, Any]:
    """What a rank says of its own failure: a claim, for people to read."""
    stack = [(line(file, 300), int(number), line(name, 100)) for file, number, name in head["stack"][:30]]
    if head["kind"] not in _KINDS:
        raise Broken("a failure of an unknown kind")
    return {
        "kind": head["kind"],
        "text": clean(head["text"], 4000),
        "traceback": clean(head["traceback"], 20000),
        "stack": stack,
    }

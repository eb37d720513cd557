"""Expected values that cost something to find: found once, though a class of hundreds is judged by them."""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

_found: dict[str, str] = {}  # JSON by function and arguments: whoever gets a value may change it


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: keep `function`'s values: plain data, else TypeError, by its positional arguments."""

    @functools.wraps(function)
    def kept(*args: Any) -> Any:
        key = f"{function.__module__}.{function.__qualname__}{args!r}"
        if key not in _found:
            _found[key] = json.dumps(function(*args))
        return json.loads(_found[key])

    return kept


def known() -> dict[str, str]:
    """What was found so far, as plain data for `remember`."""
    return dict(_found)


def remember(found: Mapping[str, str]) -> None:
    """Begin with these values, of the same test files, and no others; {}: find everything anew."""
    _found.clear()
    _found.update(found)

"""How ranks talk: `Group` and its ledger, `run_ranks`, the autopsy of a failed run; the virtual wire and topologies."""

import importlib
from typing import Any

# Imported at first use: the ledger and the wire are of use without torch, and `lab --help` without either.
_WHERE = {
    "run_ranks": "ranks",
    "RankPool": "ranks",
    "RanksFailed": "autopsy",
    "Results": "autopsy",
    "Group": "group",
    "Send": "group",
    "Recv": "group",
}
__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)

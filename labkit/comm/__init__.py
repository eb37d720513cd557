"""How ranks talk: `Group`, the ledger, `run_ranks`, the autopsy of a hang; the virtual wire and its topologies."""
from __future__ import annotations

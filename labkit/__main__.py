"""`python -m labkit` is `lab`."""

from __future__ import annotations

from labkit.cli import main

main()

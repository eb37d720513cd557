"""The doctor's probes: each a generator of Checks that tries the thing itself, harmlessly.

    machine.py       Python, the system, memory, disk
    frameworks.py    torch, the GPU, NCCL, gloo, torchao, Transformer Engine
    grading.py       user namespaces, bubblewrap, nbgrader

Each runs in a process of its own, so it may import what it likes and change its environment; what it raises is told by
`labkit.doctor.findings`. Yield a Check as soon as it is known: if the next line crashes, this one counts.
"""

from __future__ import annotations

# What is asked for, as in pyproject.toml (a test holds them together).
PYTHON = (3, 11)
TORCH = ((2, 11), (2, 15))  # at least, less than
TE = (2, 20)
PACKAGES = ("numpy", "matplotlib", "pydantic", "typer", "rich", "tokenizers", "jinja2")


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))

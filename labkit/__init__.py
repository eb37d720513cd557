"""labkit: what every week of the course stands on. Students read it; they never edit it.

Packages: `comm` (how ranks talk), `train` (the one model and training loop), `record` (what a run leaves behind),
`checks` (how a task is judged). Importing this package is cheap: torch is imported by the packages that need it.
"""

__version__ = "0.2.0"

"""labkit: what every week of the course stands on. Students read it; they never edit it."""

__version__ = "0.2.0"

"""Week 13, further on: no points, no deadline. Tasks 13.8 to 13.13, each in its own module."""

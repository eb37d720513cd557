"""Week 14, further on: no points, no deadline. Tasks 14.7 to 14.9, each in its own module."""

"""Week 16, further on: no points, no deadline. Each task in its own module."""

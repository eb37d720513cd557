"""Week 13, further on: no points, no deadline. A task a module."""

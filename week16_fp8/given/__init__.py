"""Given parts of week 16, and the numbers behind its recorded results: read them, nothing here is a task."""

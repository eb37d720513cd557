"""What your modules stand on: the setup, the four weeks' parts, modules and layouts to hang them on, one process."""

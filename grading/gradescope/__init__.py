"""Gradescope: the same judge behind its autograder's format.

pack.py    `grade gradescope week13`: the archive that is uploaded
run.py     what runs there for each submission: /autograder/submission in, /autograder/results/results.json out

The format is that of https://gradescope-autograders.readthedocs.io/en/latest/specs/ (read 2026-11).
"""

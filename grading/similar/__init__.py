"""Pairs of submissions that share more than the task, the given code and the class's habits explain.

trees.py     a student's functions as sequences of syntax-tree nodes, read in a process of its own
compare.py   fingerprints of these, and the pairs that share many (copydetect finds what is shared)
page.py      the pairs side by side

Why copydetect. It is Winnowing (Schleimer, Wilkerson and Aiken, SIGMOD 2003), the method of MOSS, in 1,000 lines of
Python on numpy; it takes a text and gives the places that two texts share, and needs no server and no other language.
Its own tokens are Pygments' and it reads whole files, so it gets ours: one character for each node of the syntax tree
of the functions that students write. Its last release is 0.5.0, of March 2024; it is pinned, and what is used of it is
two calls. Dolos is younger and cared for (3.5 in 2026) and works on syntax trees by itself, but needs Node.js and
compiled parsers on the grading machine, and reads whole files as well.
"""

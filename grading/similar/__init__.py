"""Pairs of submissions that share more than the task, the given code and the class's habits explain.

trees.py     a student's functions as sequences of syntax-tree nodes, read in a process of its own
compare.py   fingerprints of these, and the pairs that share many (copydetect finds what is shared)
page.py      the pairs side by side

Why copydetect: it is Winnowing (Schleimer, Wilkerson and Aiken, SIGMOD 2003), the method of MOSS, on numpy alone. Its own
tokens are Pygments', of whole files, so it gets ours: one character for each node of the functions' syntax trees. It is
pinned to 0.5.0, and two calls of it are used. Dolos does as much, and needs Node.js and compiled parsers.
"""

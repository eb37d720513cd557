"""Pairs of submissions that share more than the task, the given code and the class's habits explain.

trees.py     a student's functions as sequences of syntax-tree nodes, read in a process of its own
compare.py   fingerprints of these, and the pairs that share many (copydetect finds what is shared)
page.py      the pairs side by side

copydetect is Winnowing (Schleimer, Wilkerson and Aiken, SIGMOD 2003), the method of MOSS, on numpy alone. It gets our
tokens: one character for each node of the functions' syntax trees. It is pinned: two calls of its inside are used.
"""

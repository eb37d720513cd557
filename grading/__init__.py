"""What instructors need and students do not get: handing out the labs, grading what comes back.

`grading` imports labkit; nothing imports `grading`. The command is `grade` (cli.py).

    tree.py      which files make the student tree, and what each becomes on the way
    target.py    the folder they go to: never through a link, each file whole or not at all
    release.py   the two together: new files, upgrades, and texts put beside what a student changed

    register/    the class's store: who somebody is, which attempt counts, what blocks publishing, one function each
    intake/      what arrives: downloads, and what is in them; collect.py keeps it
    sandbox/     where it runs
    judge.py     one submission; pool.py: many, here; many.py: on other machines; run.py: all of them; table.py shows
    mark.py      what came of one; history.py: what became of it; files.py puts files in place whole

    marking/     nbgrader's formgrader as the screen for points by hand
    publish/     what leaves: grades for a platform, pages, tables
    similar/     pairs that share more than they should
    gradescope/  the same judge behind Gradescope's autograder
    benchmarks/  how fast, how large, how safe when killed; demo.py: four submissions for `make demo`; race.py
"""

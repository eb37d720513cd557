"""What instructors need and students do not get: handing out the labs, grading what comes back.

`grading` imports labkit; nothing imports `grading`. The command is `grade` (cli.py).

    tree.py      which files make the student tree, and what each becomes on the way
    target.py    the folder they go to: never through a link, each file whole or not at all
    release.py   the two together: new files, upgrades, and texts put beside what a student changed

    intake/      from what students hand in to what is graded: data, never run
    sandbox/     where it runs
    judge.py     one submission; pool.py: many, here; many.py: on other machines; run.py: all of them; table.py tells
    marks.py     what came of it, in files; files.py puts files in place whole

    gradebook/   marks into nbgrader's gradebook
    reports/     what people read of the marks
    benchmarks/  how fast, how large, how safe when killed; demo.py: four submissions for `make demo`
"""

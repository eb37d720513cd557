"""What instructors need and students do not get: releasing the labs (later: running submissions, marks).

`grading` imports labkit; nothing imports `grading`. The command is `grade`.

    tree.py      which files make the student tree, and what each becomes on the way
    target.py    the folder they go to: never through a link, each file whole or not at all
    release.py   the two together: new files, upgrades, and texts put beside what a student changed
"""

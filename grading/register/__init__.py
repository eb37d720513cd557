"""The class's store: who is in it, what was handed in, what it is worth, and what stands in the way of publishing it.

rules.py        course.toml, typed
schema.py       class.db: its tables, opened and brought up to date; Class, what all the rest takes
people.py       who somebody is: resolve, propose, import_roster, who
deadlines.py    until when somebody may hand in
classes.py      open_class: the store, and course.toml with each name in it one person of the roster
submissions.py  what arrives: add_submission, withdraw, retime, rename
counting.py     which attempt counts, and what lateness costs
marks.py        marks, points by hand, and what became of a mark that was made again
standing.py     where everybody stands in a week
problems.py     what warns, and what blocks publishing
migrate.py      a class's folder of the former program into class.db
"""

"""nbgrader's gradebook around marks that were decided elsewhere.

`grade course init` makes nbgrader's course directory (course.py), `grade load` puts marks into its gradebook (load.py)
and beside each the notebook that formgrader shows (view.py). nbgrader never runs a submission here (guard.py).
"""

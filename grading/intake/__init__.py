"""From what students hand in to what is graded. Nothing of theirs is run here, and no name or size of theirs trusted.

find.py      who handed in: the entries of a folder, whatever its layout (names.py: what names tell, which are harmless)
load.py      one entry's files as bytes (contents.py: of zips and folders)
arrange.py   the folder that the code will run in (released.py: the week as handed out; extras.py, notebook.py)
collect.py   `grade collect`: every attempt kept for good (sources.py, pack.py, receipts.py; commands.py)
renames.py   `grade rename`: a misnamed file counts under its right name (rename.py)
roster.py    who is in the class, by a platform's file or a list
policy.py    course.toml: which attempt of a student counts, and what lateness costs
"""

from grading.intake.arrange import Package, arrange
from grading.intake.find import Entry, Found, find_submissions
from grading.intake.load import Submission, load

__all__ = ["Entry", "Found", "Package", "Submission", "arrange", "find_submissions", "load"]

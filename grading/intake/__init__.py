"""From a download to what is graded. Nothing of a student's is run here, and no name or size of theirs is trusted; nor
does anything here know who is in the class, which the register answers.

rosters.py      files that name a class, and Moodle's worksheet
downloads.py    a download -> what arrived in it (unpacking.py, worksheet.py, attempts.py; arrival.py is what comes out)
guesses.py      every guess at what a name in a download means, with a table of examples (stamps.py: times)
submission.py   one kept archive as bytes (archives.py: of zips and folders)
arrange.py      the folder that the code will run in (released.py: the week as handed out; extras.py, notebook.py)
wrong_week.py   another week's submissions; misnamed.py: under which names a misnamed file may count
names.py        names that strangers chose: which are harmless, and how they are shown
"""

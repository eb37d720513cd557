"""Students' code, shut in: it runs with no network, no files but its own, and one socket to a broker outside.

command.py     the bubblewrap command: which files are in the sandbox
inside/        what runs in there
box.py         one sandbox, from outside: start, fork ranks, end
frames.py      what a rank says, read as data
broker.py      what the ranks of one call say to each other; the true ledger; who waits for whom
call.py        one call: deadline, memory, output, and what its end means
watch.py       what a tree of processes uses, read from /proc
runner.py      the Runner behind `call`
isolation.py   which isolation this machine gives
"""

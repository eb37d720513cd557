"""What the verdict's error rates are measured on: trainings whose true gaps are known, and comparisons drawn from them.

faults.py      FP8 that is wrong by a dose
together.py    many trainings as one
pool.py        `python -m studies.verdict.pool POOL`: trains many runs, and writes their held-out losses
operating.py   `python -m studies.verdict.operating POOL OUT`: how often the verdict says each word, by true gap
repeated.py    `python -m studies.verdict.repeated OUT CALL ...`: the same of comparisons that GPUs have run
show.py        the pictures and the tables of both
"""

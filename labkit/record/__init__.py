"""Records of runs: what was run, on what, what happened at each step; and the pictures and reports drawn from them.

run.py       the run folder: run.json, steps.jsonl, events.jsonl; written so that kill -9 loses at most one line
read.py      reading a run folder in whatever state it is
clean.py     what may enter a record: valid JSON, no secrets, no user or host names, no absolute paths
hardware.py  what GPUs can do at most, and what this machine is
measure.py   honest timing, throughput without warm-up, peak memory, tokens/s to FLOP/s and MFU
facts.py     what a run folder says, arm by arm: the numbers of the report and the pictures
figures.py   the pictures, each with its alt text; figures_*.py and plotting.py stand behind it
report.py    one self-contained HTML page from a run folder
arms.py, compare.py, verdict.py, summary.py, progress.py     `lab compare`
"""

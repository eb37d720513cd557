"""Records of runs: what was run, on what, what happened at each step; and the pictures and reports drawn from them.

    run.py       the run folder: run.json, steps.jsonl, events.jsonl; written so that kill -9 loses at most one line
    clean.py     what may enter a record: valid JSON, no secrets, no user or host names, no absolute paths
    measure.py   honest timing, throughput without warm-up, peak memory, tokens/s to FLOP/s and MFU
    figures.py   the pictures, each with its alt text
    report.py    one self-contained HTML page from a run folder
"""

"""The ground: what a run was, what happened at each step, on which machine, how fast; and how it is drawn.

Here belongs what every week and every tool records and measures with. What a comparison concludes from its records is
labkit.compare's; how a training makes them, labkit.train's.

run.py       the run folder: run.json, steps.jsonl, events.jsonl; written so that kill -9 loses at most one line
read.py      reading a run folder in whatever state it is
packed.py    a finished run as one file
clean.py     what may enter a record: valid JSON, no secrets, no user or host names, no absolute paths
files.py     replacing a file whole, and a failure to write as one sentence
hardware.py  what GPUs can do at most, and what this machine is
measure.py   honest timing, throughput without warm-up, peak memory, tokens/s to FLOP/s and MFU
meter.py     clock, watts and their limit, while a GPU works
benchmark.py what every benchmark's record begins with; writing and reading it
kernels.py   where each millisecond of a step goes, by class of kernel
plotting.py  one style for all pictures
"""

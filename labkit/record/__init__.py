"""What every week and every tool records and measures with.

run.py, read.py, schema.py  the run folder: writing it, reading it in whatever state it is, its types
packed.py, benchmark.py     a finished run, and a benchmark's record, as one file
clean.py, files.py          what may enter a record; replacing a file whole
hardware.py, chips.py       what this machine is; what GPUs can do at most
measure.py, meter.py        time, throughput, memory, MFU; clock and watts of a GPU at work
kernels.py, plotting.py     the milliseconds of a step by class of kernel; one style for all pictures
"""

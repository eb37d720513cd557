"""What can this machine run? Probes that try it, harmlessly, and the findings that `lab doctor` prints.

A probe (machine.py, frameworks.py, grading.py) is a generator of Checks, in a process of its own; what it raises
becomes a finding (findings.py). Yield a Check as soon as it is known: if the next line crashes, this one counts.
"""

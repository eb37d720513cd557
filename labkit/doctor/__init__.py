"""What can this machine run? Probes that try it, harmlessly, and the findings that `lab doctor` prints.

A probe (system.py, frameworks.py) is a generator of Checks, in a process of its own (findings.py).
"""

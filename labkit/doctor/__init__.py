"""What can this machine run? Probes that try it, harmlessly, and the findings that `lab doctor` prints.

Here belongs what a machine is tested for. What goes with what, on any machine, is labkit.precision.matrix's.

    findings.py       runs the probes and prints what they found
    machine.py        Python, the system, memory, disk
    frameworks.py     torch, the GPU, NCCL, gloo, BF16 products, torchao, Transformer Engine
    grading.py        user namespaces, bubblewrap, nbgrader
    requirements.py   the versions that are required

A probe is a generator of Checks. It runs in a process of its own, so it may import what it likes and change its
environment; what it raises becomes a finding (findings.py). Yield a Check as soon as it is known: if the next line crashes, this
one counts.
"""

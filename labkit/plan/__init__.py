"""`lab plan`: which degrees of parallelism for this model on these GPUs, how long a step takes, and why.

A step is a sum of parts, each a formula that fits on a line; every answer says how wrong they are on unseen runs.

    machine.py, model.py                            GPUs, and the file of one's own machine; models by name
    cases.py, constants.py                          many (model, plan, machine) as columns; what is not derived
    work.py, links.py, footprint.py                 computing, messages, bytes
    step.py                                         all of it together: overlap, bubble, optimizer
    rows.py, fit.py, validate.py, calibrate.py      measured runs as cases, and what is made of them
    search.py, explain.py, request.py, planner.py, anatomy.py   every plan on a cluster, and what `lab plan` shows

data/shown.csv: 81 public runs of A100, H100 and GB200, each with its source; data/own.csv: this course's, on H200.
"""

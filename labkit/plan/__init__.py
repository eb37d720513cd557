"""`lab plan`: which degrees of parallelism for this model on these GPUs, how long a step takes, and why.

A step is a sum of parts, and each part is a formula that fits on a line. Every answer says how wrong the formulas are
on runs that they have not seen.

    machine.py      what a GPU can do
    model.py        the models by name
    cases.py        many (model, plan, machine) at once, as columns
    constants.py    what is not derived; data/fitted.toml has the values
    work.py         products by tiles and waves, attention, what only moves bytes, casts
    links.py        what messages cost, by level
    footprint.py    bytes by kind, and whether they fit
    step.py         all of it together: overlap, bubble, optimizer
    rows.py         measured runs as cases; what a row does not say is tried both ways
    fit.py          fit the constants; leave a stack out, or a row
    validate.py     hold the model to a file of measured runs
    search.py       every plan of a model on a cluster
    explain.py      why not the neighbours
    request.py      the options of `lab plan`, and what they mean
    planner.py      what `lab plan` prints
    anatomy.py      the picture of plans' steps by part
    machine_file.py the file of one's own machine, and what it changes
    calibrate.py    `lab plan --calibrate`: measures that file
    wires.py        what a message takes on this machine

data/shown.csv: 41 public runs of A100 and H100, each with its source; data/own.csv: this course's, on H200.
"""

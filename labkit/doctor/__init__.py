"""What can this machine run? Probes that try it, harmlessly, and the findings that `lab doctor` prints.

What goes with what, on any machine, is the compatibility matrix's: labkit.precision.matrix.
"""

"""The one decoder of every week: its shape, its weights, its floating-point operations.

Precision and parallelism are applied to it from outside (labkit.precision, labkit.parallel): nothing of them is here.
"""

"""The one decoder of every week: its shape, its weights, its floating-point operations.

Whole or in stages, from linears that come from outside. How a linear computes is labkit.precision's and how the model
is spread over ranks labkit.parallel's: of both nothing is here, but that first values are right wherever a weight lies.
"""

"""From one model to many ranks: the order of transforms, and the ways to share a model.

How a linear computes is labkit.precision's; what a step does, labkit.train's.
"""

"""From one model to many ranks: the order of transforms, and the ways to share a model.

A transform changes how a given model computes, never what; it is given a TransformConfig and knows of no run. What a
step does, and what is checked and saved of a sharded model, is labkit.train's.
"""

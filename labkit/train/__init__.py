"""Training: the one loop and how others take part in it, the optimizer, the check of each step, checkpoints, the text.

A run is one TrainConfig and one call of `train_job`. How the model is built, converted and sharded comes from the
packages below; what runs are compared for, and their speed and verdicts, is labkit.compare's.
"""

"""Training: the one loop and how others take part in it, the optimizer, the check of each step, checkpoints, the text.
A run is one TrainConfig and one call of `train_job`."""

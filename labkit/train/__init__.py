"""Training: the one loop and how others take part in it, the optimizer, the check of each step, checkpoints, the text."""

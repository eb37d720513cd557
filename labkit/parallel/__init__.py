"""From one model to many ranks: the order of transforms, and the ways to share a model."""

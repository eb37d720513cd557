"""What runs your modules: the configuration, both ways' loops, the notebook's experiments."""

"""What week 15 gives: the bench's blocks, clock and record, and the notebook's experiments and pictures."""

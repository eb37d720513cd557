"""What the verdict's error rates are measured on: trainings whose true gaps are known, and comparisons drawn from them."""

"""What grading costs, measured: not tests, since times depend on the machine. Records go to results/."""

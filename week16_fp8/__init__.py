"""Week 16: FP8 training. The week's reference parts; labkit finds them by name alone (labkit.precision.student)."""

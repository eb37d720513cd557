"""The one decoder of every week: its shape, its weights, its floating-point operations; precision and parallelism are
put on from outside."""

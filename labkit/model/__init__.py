"""The one decoder of every week; precision and parallelism are put on from outside."""

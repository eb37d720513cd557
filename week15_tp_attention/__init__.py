"""Week 15, tensor parallelism by hand, then a pipeline: two messages a block, and the bubble. Start with README.md."""

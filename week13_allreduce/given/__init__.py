"""Given: what the notebook and the benchmark run on. Read it when you are curious; nothing here is a task."""

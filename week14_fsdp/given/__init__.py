"""What is given: the small network of the checks, the storage meter, the reader of traces."""

"""Train: the one decoder, the corpus and the one training loop. Precision and sharding are applied from outside."""

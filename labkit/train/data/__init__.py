"""Text to train on: files, vocabulary, tokens, and which rank sees which of them at which step."""

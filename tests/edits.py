"""Edits of a reference: a mutant is one place of one function, said in code, whatever comments stand beside it."""

import io
import tokenize


def bare(text: str) -> str:
    """A module without its comments, the marks of solutions apart."""
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith("###"):
            continue
        row, column = token.start
        kept = lines[row - 1][:column].rstrip()
        lines[row - 1] = kept + "\n" if kept else ""
    return "".join(lines)

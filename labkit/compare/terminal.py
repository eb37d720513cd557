"""How results are put before people: lines on the terminal, tables in Markdown."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text


def say(console: Console, text: str, *, head: str = "", style: str = "", fold: bool = True) -> None:
    """Print `text` without markup, `head` before it in bold, folded at the terminal's width unless `fold` is False."""
    line = Text.assemble((head, "bold"), (text, style))
    console.print(line, highlight=False, soft_wrap=not fold or not console.is_terminal)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def parameters(count: float) -> str:
    """ "1.14 B parameters", "124 M parameters"."""
    return f"{count / 1e9:.3g} B parameters" if count >= 1e9 else f"{count / 1e6:.3g} M parameters"

"""How results are put before people: lines and tables on the terminal, the same tables in Markdown."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


def say(console: Console, text: str, *, head: str = "", style: str = "", fold: bool = True) -> None:
    """Print `text` without markup, `head` before it in bold, folded at the terminal's width unless `fold` is False."""
    line = Text.assemble((head, "bold"), (text, style))
    console.print(line, highlight=False, soft_wrap=not fold or not console.is_terminal)


def rich_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """For the terminal. Names, in the first column, fold where it is narrow; a cut number would be a wrong one."""
    out = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i, head in enumerate(heads):
        out.add_column(head, justify="right" if i else "left", no_wrap=bool(i))
    for row in rows:
        out.add_row(*row)
    return out


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def parameters(count: float) -> str:
    """ "1.14 B parameters", "124 M parameters"."""
    return f"{count / 1e9:.3g} B parameters" if count >= 1e9 else f"{count / 1e6:.3g} M parameters"

"""Sphinx's settings for the site, and the few hooks that the course's pages need."""

import re

project = "Distributed training, by hand"
author = "the course's authors"
copyright = "the authors; text CC BY 4.0, code Apache-2.0"
extensions = ["myst_nb", "sphinx_design", "sphinx.ext.autodoc"]
exclude_patterns = ["labkit", ".doctrees", "**/.ipynb_checkpoints"]
html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["explore.js"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "home_page_in_toc": False,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
    "show_navbar_depth": 1,
    "show_toc_level": 1,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
highlight_language = "text"
smartquotes = False  # --list is an option
myst_enable_extensions = ["html_image", "colon_fence"]
myst_heading_anchors = 5
nb_execution_mode = "off"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
autodoc_inherit_docstrings = False  # torch's are not this course's
suppress_warnings = [
    "myst.header",  # a part of a results page begins at the second level
    "ref.python",  # two classes have an attribute of this name
]


def restructured(lines: list[str]) -> list[str]:
    """A docstring of the house as reStructuredText: paragraphs, lists of words with their meaning, and what is laid out."""
    made: list[str] = []
    for block in re.split(r"\n(?:[ \t]*\n)+", "\n".join(lines).strip("\n")):
        rows = block.split("\n")
        names = [re.match(r"(\S(?:\S| (?! ))*) {2,}(\S.*)$", row) for row in rows]
        if names[0] and all(name or row.startswith("   ") for name, row in zip(names, rows)):
            for name, row in zip(names, rows):
                made += (
                    [f"``{name[1].strip('`')}``", f"    {_plain(name[2])}"] if name else [f"    {_plain(row.strip())}"]
                )
        elif rows[0].startswith("- ") and all(row.startswith(("- ", "  ")) for row in rows):
            made += _plain(block).split("\n")
        elif any(re.match(r" |- |\S.*\S {2,}\S", row) for row in rows):
            made += ["::", "", *(f"    {row}" for row in rows)]
        else:
            made += _plain(block).split("\n")
        made.append("")
    return made


def _plain(text: str) -> str:
    """Words with backticks, and nothing else that means something."""
    parts = re.split(r"(`+[^`]+`+|\*\*\w[^*]*\*\*)", text)
    for at, part in enumerate(parts):
        if at % 2 == 0:
            parts[at] = re.sub(r"([*|\\]|_(?!\w)|(?<=\w):(?=\w))", r"\\\1", part)  # file:line is no address
        elif part[0] == "`":
            glued = ["\\ " if re.match(r"\w", side) else "" for side in (parts[at - 1][-1:], parts[at + 1])]
            parts[at] = f"{glued[0]}``{part.strip('`')}``{glued[1]}"
    return "".join(parts)


def _docstring(app, what, name, obj, options, lines):
    lines[:] = restructured(lines)


def _folded(app, pagename, templatename, context, doctree):
    """Results behind a fold: whoever wants to predict first has not seen them."""
    if "fold" in app.env.metadata.get(pagename, {}):
        head, h1, rest = context["body"].partition("</h1>")
        body, end, tail = rest.rpartition("</section>")
        words = "Show the results. They answer the lab's predictions: make yours first."
        context["body"] = f'{head}{h1}<details class="results"><summary>{words}</summary>{body}</details>{end}{tail}'
        context["meta"]["html_theme.sidebar_secondary.remove"] = True


def setup(app):
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("html-page-context", _folded, priority=900)

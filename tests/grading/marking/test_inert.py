"""A student's Markdown on the instructor's page: it can be read, and it cannot act."""

import pytest

from grading.marking import inert
from tests.grading.publish.looking import Tags

PAYLOADS = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<ScRiPt\n>alert(1)</sCrIpT>", "<<script>x</script>",
    "a <b onclick='x'>c</b>", "<!-- --><iframe srcdoc='x'>", "<svg/onload=alert(1)>", "<?php x ?><script>",
    "</p><form>", "[x](javascript:alert(1))", "[x]( javascript&#58;alert(1) 'onmouseover=x')",
    "![x](http://evil/x.png)", "[x][y]\n\n[y]: javascript:alert(1)", "[y]\n\n[y]:\n  javascript:alert(1)",
    "<javascript:alert(1)>", "<http://evil>", "    <script>x</script>", "`<script>`", '```"><script>x</script>\nx\n```',
    "```html\n<script>alert(1)</script>\n```", "$<script>alert(1)</script>$", "$$\n<img src=x onerror=alert(1)>\n$$",
    "\\begin{a}<script>x</script>\\end{a}",
    "| <script>x</script> | [a](javascript:x) |\n|---|---|\n| <img onerror=x> | b |",
    '# <script>x</script> " onclick=x', "&lt;script&gt;alert(1)&lt;/script&gt;", "<\u2060script>x",
    "> <details open ontoggle=alert(1)>", "- <a href=javascript:alert(1)>x</a>",
    '~~~mermaid\nclick A href "javascript:alert(1)"\n~~~', "[x](data:text/html,<script>x</script>)",
    "\\<script>alert(1)</script>", "*<script>*</script>", "[![a](x)](javascript:alert(1))", "<a\thref='x'>y</a>",
    "[^1]\n\n[^1]: <script>x</script>", "<x-y onfocus=alert(1) autofocus tabindex=1>", "<a:b onclick=x>",
]  # fmt: skip


@pytest.fixture
def found():
    """(tags, values of attributes by name) that nbconvert's own renderer makes of Markdown, as formgrader uses it."""
    render = pytest.importorskip("nbconvert.filters.markdown_mistune").markdown2html_mistune

    def of(text):
        page = Tags(render(text), ours=False)
        return {tag for tag, _ in page.found}, page.attributes

    return of


@pytest.mark.parametrize("payload", PAYLOADS)
def test_markdown_becomes_a_page_without_markup_of_the_students(payload, found):
    tags, attributes = found(inert.markdown(payload))
    assert tags <= {
        "p", "a", "h1", "pre", "code", "div", "span", "ul", "li", "em", "blockquote", "table", "thead", "tbody", "tr",
        "th", "td", "section", "ol", "sup", "br",
    }  # fmt: skip
    for name, value in attributes:
        assert name in ("class", "id", "href") and not name.startswith("on")
        assert name != "href" or value.startswith(("#", "http://", "https://")), "a plain address may be a link"
        assert value != "mermaid"


def test_the_payloads_do_act_without_it(found):
    """Or the test above proves nothing."""
    active = {"script", "img", "svg", "iframe", "details", "form"}
    made = [found(payload) for payload in PAYLOADS]
    acting = [tags & active or any(name == "href" and ":" in value for name, value in own) for tags, own in made]
    assert sum(map(bool, acting)) > 20


@pytest.mark.parametrize("macro", ["href", "require", "style", "class", "cssId", "unicode", "HREF", "bbox", "csname"])
def test_formulas_lose_the_commands_that_can_act_and_keep_the_rest(macro):
    text = inert.markdown(f"$\\{macro}{{javascript:alert(1)}}{{x}} + \\frac{{1}}{{2}} \\classical$")
    assert f"\\{macro}{{" not in text and "\\frac{1}{2}" in text and "\\classical" in text

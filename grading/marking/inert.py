"""Text of students made harmless for a page that runs on the instructor's Jupyter server.

Formgrader turns a notebook into a page as it is: HTML and scripts in Markdown and in outputs would run there, with the
instructor's rights. So a student's Markdown keeps its headings, lists, tables, code and formulas, and loses HTML,
embedded pictures and links (a bare web address still becomes one); of outputs only text and bitmaps are kept.
"""

import base64
import binascii
import re
from html import unescape
from typing import Any

JOINER = "\u2060"  # a word joiner: no width, no meaning; it keeps two characters from being read as markup
LONGEST_TEXT = 100_000  # characters of one cell or output
LARGEST_PICTURE = 3_000_000  # characters of base64
# control characters but newline and tab; half characters; what turns the direction of reading
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"\](?=[(\[:])")
_ACT = r"href|url|require|style|class|cssId|html\w*|unicode|mmlToken|bbox|csname|includegraphics"
_TEX = re.compile(rf"\\(?=(?:{_ACT})(?![a-z]))", re.IGNORECASE)
_DIAGRAM = re.compile(r"(?<=mer)(?=maid)", re.IGNORECASE)  # the language whose code blocks the page would draw
_IMAGE = re.compile(r"<img\b[^<>]*>", re.IGNORECASE)
_SOURCE = re.compile(r'\ssrc="data:(image/(?:png|jpeg));base64,([^"]+)"')
_DESCRIPTION = re.compile(r'\salt="([^"]*)"')
_SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}


def plain(text: Any, longest: int = LONGEST_TEXT) -> str:
    """Text without control characters, direction overrides and half characters; "" for what is no text."""
    text = joined(text)
    cut = len(text) - longest
    text = _ODD.sub("\ufffd", text[:longest].replace("\r\n", "\n").replace("\r", "\n"))
    return f"{text}\n[{cut} more characters are not shown]" if cut > 0 else text


def markdown(text: Any) -> str:
    """A student's Markdown without HTML, hidden links, embedded pictures, diagrams and TeX that can act."""
    text = _DIAGRAM.sub(JOINER, plain(text))
    text = _TAG.sub(f"<{JOINER}", text)
    text = _LINK.sub(f"]{JOINER}", text)
    return _TEX.sub(lambda _: f"\\{JOINER}", text)


def outputs(found: Any, most: int = 20) -> list[dict[str, Any]]:
    """A code cell's outputs, with their text and bitmaps only, in the notebook format 4.5."""
    kept: list[dict[str, Any]] = []
    for output in found if isinstance(found, list) else ():
        if len(kept) == most:
            kept.append(stream("[more outputs are not shown]"))
            break
        if isinstance(output, dict):
            kept.extend(_output(output))
    return kept


def _output(output: dict[str, Any]) -> list[dict[str, Any]]:
    kind, data = output.get("output_type"), output.get("data")
    if kind == "stream":
        return [stream(plain(output.get("text"), 20_000))]
    if kind == "error":
        name, value = plain(output.get("ename"), 200), plain(output.get("evalue"), 2_000)
        return [{"output_type": "error", "ename": name, "evalue": value, "traceback": [f"{name}: {value}"]}]
    if not isinstance(data, dict):
        return []
    for form in _SIGNATURES:
        if form in data:
            return _pictures([(form, _base64(data[form]), "")])
    if "text/html" in data and (found := _embedded(data["text/html"])):
        return _pictures(found)
    if text := plain(data.get("text/plain"), 20_000):
        return [stream(text)]
    return [stream("[an output that is not shown here]")] if data else []


def _pictures(found: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Display outputs of (form, base64, description); a sentence for one that is none or too large."""
    result = []
    for form, data, description in found:
        if _is_picture(form, data):
            metadata = {form: {"alt": description}} if description else {}
            kinds = {form: data, "text/plain": description or "a picture"}
            result.append({"output_type": "display_data", "metadata": metadata, "data": kinds})
        else:
            result.append(stream("[a picture that cannot be shown]"))
    return result


def _base64(data: Any) -> str:
    return re.sub(r"\s", "", joined(data))


def _is_picture(form: str, data: str) -> bool:
    """Whether this is strict base64 that begins as a bitmap of this form does."""
    if not 0 < len(data) <= LARGEST_PICTURE:
        return False
    try:
        return base64.b64decode(data, validate=True).startswith(_SIGNATURES[form])
    except (binascii.Error, ValueError):
        return False


def stream(text: str) -> dict[str, Any]:
    """An output that is text alone."""
    return {"output_type": "stream", "name": "stdout", "text": text}


def _embedded(html: Any) -> list[tuple[str, str, str]]:
    """(form, base64, description) of the bitmaps in an HTML output: what `labkit.notebook.show` puts there.

    By patterns that take linear time, whatever the text is: a real parser does not."""
    found = []
    for tag in _IMAGE.findall(joined(html)[: 2 * LARGEST_PICTURE])[:5]:
        if source := _SOURCE.search(tag):
            description = _DESCRIPTION.search(tag)
            found.append((source[1], _base64(source[2]), plain(unescape(description[1]) if description else "", 2_000)))
    return found


def joined(text: Any) -> str:
    """A notebook's text, which may be a list of lines."""
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""

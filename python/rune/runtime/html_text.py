"""The text of a web page, for a model: no markup, no scripts, one line for each paragraph, list item and row."""

from __future__ import annotations

import re
from html.parser import HTMLParser

__all__ = ["html_text"]

_HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_BREAKS = frozenset(
    "address article aside blockquote br dd div dl dt fieldset figure footer form h1 h2 h3 h4 h5 h6 header hr li main nav "
    "ol option p pre section table tbody tr ul".split()
)
_SPACE = re.compile(r"[ \t\r\f\v\xa0]+")


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title = ""
        self._hidden = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = True
        elif tag == "body":  # a head that was never closed
            self._hidden = 0
        elif tag in _HIDDEN:
            self._hidden += 1
        elif tag in _BREAKS:
            self.pieces.append("\n")
        elif tag in ("td", "th"):
            self.pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag in _BREAKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._hidden:
            self.pieces.append(data)


def html_text(page: str) -> str:
    """The page's title and its visible text."""
    parser = _Text()
    parser.feed(page)
    parser.close()
    lines = [_SPACE.sub(" ", line).strip() for line in "".join(parser.pieces).split("\n")]
    text = "\n".join(line for line in lines if line)
    title = " ".join(parser.title.split())
    return f"{title}\n\n{text}" if title else text

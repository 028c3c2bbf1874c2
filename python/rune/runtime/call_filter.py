"""What of a reply is shown while it comes: its words, and not the calls that stand among them.

Text is held back from where a call may begin until it is clear whether it was one. Only what certainly is a call of a tool
that there is stays hidden; everything else is let through whole, in its order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from rune.runtime.tool_call_parser import parse_calls

__all__ = ["CallFilter"]

_BEGIN = re.compile(r"`{3,}|~{3,}|<\|?(?:tool_|function|invoke |python_tag)|\[TOOL_CALLS\]|\{")
_PART = re.compile(r"(?:`{1,2}|~{1,2}|<[|\w ]{0,12}|\[[A-Z_]{0,11})$")
_TOKEN = re.compile(r"\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"|'[^'\\]*+(?:\\.[^'\\]*+)*+'|[{}\"']", re.DOTALL)
_DATA = re.compile(r"[`~]{3,}[ \t]*(?:json\w*|text|xml|tool\w*|function_calls?|call|action)?[ \t]*\n", re.IGNORECASE)


class CallFilter:
    """``tools`` as in ``parse_calls``; ``show`` is given what may be shown."""

    def __init__(self, tools: Mapping[str, Collection[str]], show: Callable[[str], None]) -> None:
        self._tools = tools
        self._show = show
        self._held = ""
        self._kind = ""  # of what is held: "", "fence", "code", "brace" or "tag"
        self._mark = ""
        self._scanned = self._depth = 0

    def feed(self, text: str) -> None:
        """Takes the next piece of the reply."""
        self._held += text
        while self._step():
            pass

    def finish(self) -> None:
        """Lets go of what is still held."""
        held, self._held, self._kind = self._held, "", ""
        self._let(held)

    def _step(self) -> bool:
        """Whether something was decided, so that there may be more to decide."""
        if self._kind == "":
            return self._open()
        if self._kind == "brace":
            return self._brace()
        if self._kind == "tag":
            return False  # until the end: several may follow one another
        return self._fence()

    def _open(self) -> bool:
        found = _BEGIN.search(self._held)
        if found is None:
            part = _PART.search(self._held[-16:])
            self._release(len(self._held) - (0 if part is None else len(part[0])), plain=True)
            return False
        self._release(found.start(), plain=True)
        self._mark = found[0]
        self._scanned = self._depth = 0
        self._kind = "brace" if self._mark == "{" else "fence" if self._mark[0] in "`~" else "tag"
        return True

    def _fence(self) -> bool:
        line = self._held.find("\n")
        if self._kind == "fence":
            if line < 0:
                return False
            body = self._held[line:].lstrip()
            if not _DATA.match(self._held):
                if not body:
                    return False
                if body[0] not in "{[":
                    self._kind = "code"
        at = f"\n{self._mark}"
        end = self._held.find(at, max(line, self._scanned - len(at)))
        if end >= 0:
            self._release(end + len(at), plain=self._kind == "code")
            self._kind = ""
            return True
        if self._kind == "code" and (end := self._held.rfind("\n")) > 0:
            self._release(end, plain=True)  # the line break may be the beginning of the closing marks
            self._scanned = 0
        else:
            self._scanned = len(self._held)
        return False

    def _brace(self) -> bool:
        while (token := _TOKEN.search(self._held, self._scanned)) is not None:
            if token[0] in ('"', "'"):
                return False  # a text that has not ended yet
            self._scanned = token.end()
            self._depth += {"{": 1, "}": -1}.get(token[0], 0)
            if self._depth == 0 and token[0] == "}":
                self._release(token.end(), plain=False)
                self._kind = ""
                return True
        return False

    def _release(self, end: int, *, plain: bool) -> None:
        piece, self._held = self._held[:end], self._held[end:]
        if plain:
            if piece:
                self._show(piece)
        else:
            self._let(piece)

    def _let(self, piece: str) -> None:
        if not piece:
            return
        parsed = parse_calls(piece, self._tools)
        certain = parsed.calls and all(call.name in self._tools and not call.error for call in parsed.calls)
        shown = parsed.prose if certain else piece
        if shown:
            self._show(shown)

"""Incremental decoders for streamed replies: bytes in, objects out, wherever the network cut the bytes.

Nothing here does IO, so the sync and the async client share it, and a test can feed every split there is. Both decoders
hand out what stands before a bad line first, so that the text that had arrived is never lost with the error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["MAX_LINE_BYTES", "LineError", "NdjsonDecoder", "SseDecoder", "SseEvent"]

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A line longer than this is no reply; without a limit a broken server could fill the memory."""


class LineError(Exception):
    """A line of the stream that is not what the format allows; ``line`` is its beginning, for the error message."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line


class _Lines:
    """Bytes cut into lines at ``\\n``; the unfinished rest waits for the next chunk."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *whole, last = chunk.split(b"\n")
        for piece in whole:
            self._rest.append(piece)
            line = b"".join(self._rest)
            self._rest, self._size = [], 0
            yield line
        if last:
            self._rest.append(last)
            self._size += len(last)
            if self._size > MAX_LINE_BYTES:
                raise LineError(f"a line of more than {MAX_LINE_BYTES} bytes")

    def finish(self) -> bytes:
        line = b"".join(self._rest)
        self._rest, self._size = [], 0
        return line


class NdjsonDecoder:
    """Newline-delimited JSON objects, as ``/api/chat`` streams them. Blank lines are skipped."""

    def __init__(self) -> None:
        self._lines = _Lines()

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """The objects that this chunk completes. Raises ``LineError`` at a line that is no JSON object."""
        for line in self._lines.feed(chunk):
            if line.strip():
                yield _object(line)

    def finish(self) -> Iterator[dict[str, Any]]:
        """The object of a last line without a newline, if there is one. Raises ``LineError`` when it is no object."""
        line = self._lines.finish()
        if line.strip():
            yield _object(line)


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One server-sent event: its name ("message" when not given) and its data lines joined by a newline."""

    event: str
    data: str

    def json(self) -> dict[str, Any]:
        """The data as a JSON object. Raises ``LineError`` when it is none."""
        return _object(self.data.encode("utf-8", "surrogatepass"))


class SseDecoder:
    """Server-sent events (WHATWG), as OpenAI-compatible servers stream them; comments and ids are skipped."""

    def __init__(self) -> None:
        self._lines = _Lines()
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """The events that this chunk completes."""
        for line in self._lines.feed(chunk):
            # A lone CR ends a line too, but no model server sends one; a CR before the LF is the usual form.
            event = self._take(line.removesuffix(b"\r"))
            if event is not None:
                yield event

    def finish(self) -> Iterator[SseEvent]:
        """What waits when the stream ends without a blank line; lenient, since some servers leave it out."""
        event = self._take(self._lines.finish().removesuffix(b"\r")) or self._take(b"")
        if event is not None:
            yield event

    def _take(self, line: bytes) -> SseEvent | None:
        if not line:
            if not self._data:
                self._event = ""
                return None
            event = SseEvent(self._event or "message", "\n".join(self._data))
            self._event, self._data = "", []
            return event
        text = line.decode("utf-8", "replace")
        if text.startswith("{"):
            # An error object in the place of an event: some servers break the format when they fail in mid-stream.
            return SseEvent("error", text)
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        return None


def _object(line: bytes) -> dict[str, Any]:
    text = line.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise LineError(text.strip()[:300]) from None
    if not isinstance(value, dict):
        raise LineError(text.strip()[:300])
    return value

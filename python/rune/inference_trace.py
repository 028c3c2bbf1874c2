"""One durable record per run: why it cost what it cost, and what exactly the model saw.

Recording degrades and never fails a turn. ``python3 -m rune.inference_trace [n]`` prints the last n records.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rune.errors import InvalidInput, RuneError
from rune.paths import inference_traces
from rune.settings import Settings
from rune.storage.log import BACKUPS, MAX_BYTES, DurableLog
from rune.storage.rows import Row
from rune.subsystem_health import record_failure
from rune.traces.prices import Price, price_for
from rune.traces.query import TraceRows, find_rows, read_rows
from rune.traces.record import build_record, verify_row, without_content
from rune.traces.schema import SCHEMA_VERSION, normalise_row

__all__ = [
    "SCHEMA_VERSION",
    "InferenceTraceStore",
    "Price",
    "TraceRows",
    "append_trace",
    "build_record",
    "find_rows",
    "main",
    "normalise_row",
    "price_for",
    "read_traces",
    "verify_row",
]

DEFAULT_TAIL = 10

# Characters that move a terminal's cursor or reorder what is read; inside JSON an escape means the same.
_HOSTILE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class InferenceTraceStore:
    """The trace of a home: ``state/inference_traces.jsonl`` and its rotated files (10 MB x 3 unless set otherwise)."""

    def __init__(self, home: Path | str | None = None, settings: Settings | None = None) -> None:
        """``settings``: those of the home when None. Raises InvalidInput when they cannot be used."""
        self.settings = Settings.load(home) if settings is None else settings
        self.log = DurableLog(
            inference_traces(self.settings.home if home is None else home),
            max_bytes=self.settings.trace_max_bytes,
            backups=self.settings.trace_backups,
        )

    def append(self, row: Mapping[str, Any]) -> bool:
        """Adds a row. False when it could not be stored, which is recorded as ``storage.degraded`` (tier 2); never raises.

        With the setting trace "content-off" the row loses its texts first; with "off" nothing is stored, as wished.
        """
        try:
            if self.settings.trace != "off":
                self.log.append(without_content(row) if self.settings.trace == "content-off" else row)
        except Exception as exc:  # whatever goes wrong here, the turn has its answer
            record_failure("storage.degraded", exc, tier=2)
            return False
        return True

    def record(self, **values: Any) -> Row | None:
        """Builds the record of a run (``build_record``'s arguments) and stores it; the row, or None if none could be built."""
        try:
            row = build_record(**values)
        except Exception as exc:
            record_failure("storage.degraded", exc, tier=2)
            return None
        self.append(row)
        return row

    def read(self, *, limit: int | None = None) -> TraceRows:
        """As ``read_traces``."""
        return read_rows(self.log, limit=limit)

    def close(self) -> None:
        """Lets the file go."""
        self.log.close()


def append_trace(home: Path | str | None, row: Mapping[str, Any], *, settings: Settings | None = None) -> bool:
    """Adds a row to the trace of ``home``; see ``InferenceTraceStore.append``. Never raises."""
    try:
        store = InferenceTraceStore(home, settings)
    except Exception as exc:
        record_failure("storage.degraded", exc, tier=2)
        return False
    try:
        return store.append(row)
    finally:
        store.close()


def read_traces(home: Path | str | None = None, *, limit: int | None = None) -> TraceRows:
    """The rows of a home (the environment's when None), the oldest first; the last ``limit`` of them when given.

    Rows of every version are returned, with the default in place of what they lack. ``.skipped`` counts torn lines and lines
    that are no objects, ``.bad_fields`` fields of a wrong type. No home, no file: no rows.

    Raises StorageError when a file is there and cannot be read.
    """
    return read_rows(DurableLog(inference_traces(home), max_bytes=MAX_BYTES, backups=BACKUPS), limit=limit)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the last n records as lines of JSON. Returns 0, 1 when the files cannot be read, 2 for wrong usage."""
    args = list(sys.argv[1:] if argv is None else argv)
    usage = f"usage: python3 -m rune.inference_trace [n]   (prints the last n records, {DEFAULT_TAIL} by default)"
    if args in (["-h"], ["--help"]):
        print(usage)
        return 0
    if len(args) > 1 or (args and not re.fullmatch(r"[0-9]{1,18}", args[0])):
        wrong = args[1] if len(args) > 1 else args[0]
        print(f"{usage}\nerror: n must be one whole number, 0 or more; got {wrong!a}", file=sys.stderr)
        return 2
    try:
        rows = read_traces(limit=int(args[0]) if args else DEFAULT_TAIL)
    except RuneError as exc:
        print(f"error: {exc}".encode("ascii", "backslashreplace").decode(), file=sys.stderr)
        return 2 if isinstance(exc, InvalidInput) else 1
    try:
        for row in rows:
            print(_line(row))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has enough. The interpreter's own last flush must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if rows.skipped or rows.bad_fields:
        bad = ", ".join(f"{ascii(name)[1:-1]} in {count}" for name, count in rows.bad_fields.items())
        print(f"skipped lines: {rows.skipped}; fields at their default: {bad or 'none'}", file=sys.stderr)
    return 0


def _line(row: Row) -> str:
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return json.dumps(row, separators=(",", ":"))
    return _HOSTILE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


if __name__ == "__main__":
    raise SystemExit(main())

"""Reading trace rows: tolerant of other versions and of broken fields, and outspoken about both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rune.storage.log import DurableLog
from rune.storage.rows import Row
from rune.traces.schema import normalise_row

__all__ = ["TraceRows", "find_rows", "iterate", "read_rows", "run_id_of"]


class TraceRows(list[Row]):
    """Rows with every field of version 4, the oldest first.

    ``skipped``: lines that are torn or no objects. ``bad_fields``: how often each field was of a wrong type and fell to its
    default.
    """

    def __init__(
        self, rows: Iterable[Row] = (), *, skipped: int = 0, bad_fields: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(rows)
        self.skipped = skipped
        self.bad_fields: Counter[str] = Counter(bad_fields or {})


def run_id_of(row: Mapping[str, Any]) -> str:
    """The run's id, or "" in rows of others and of older versions."""
    ext = row.get("ext")
    found = ext.get("run_id") if isinstance(ext, Mapping) else None
    return found if isinstance(found, str) else ""


def read_rows(log: DurableLog, *, limit: int | None = None) -> TraceRows:
    """All rows, or the last ``limit`` of them. Raises StorageError when a file is there and cannot be read."""
    raw = list(log.read()) if limit is None else log.tail(limit)
    rows = TraceRows(skipped=log.skipped)
    for found in raw:
        row, bad = normalise_row(found)
        rows.append(row)
        rows.bad_fields.update(bad)
    return rows


def iterate(log: DurableLog, *, newest_first: bool = False) -> Iterator[Row]:
    """Rows one by one, for what should not hold them all. Raises StorageError when a file is there and cannot be read."""
    for found in log.read(newest_first=newest_first):
        yield normalise_row(found)[0]


def find_rows(
    log: DurableLog,
    *,
    run_id: str | None = None,
    task_id: str | None = None,
    where: Callable[[Row], bool] | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Rows that meet every condition given, the newest first; at most ``limit``.

    ``run_id`` may be the beginning of one. Raises StorageError when a file is there and cannot be read.
    """
    found: list[Row] = []
    if limit is not None and limit <= 0:
        return found
    for row in iterate(log, newest_first=True):
        if run_id is not None and not (run_id and run_id_of(row).startswith(run_id)):
            continue
        if task_id is not None and row["task_id"] != task_id:
            continue
        if where is not None and not where(row):
            continue
        found.append(row)
        if len(found) == limit:
            break
    return found

"""Rows appended per second: the durable log beside what is written without thinking, and beside the standard library's.

pytest benches/test_log.py --benchmark-enable

The rivals promise less: neither locks against other processes, repairs a torn end or takes back half a row, and the rotating
handler, used by two processes, loses rows at every rotation.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rune.storage.log import DurableLog

Benchmark = Callable[..., Any]
ROWS = 1_000
SIZES = {"a row of 150 bytes": 100, "a row of 100 KB": 100_000}


def durable(path: Path) -> Callable[[dict[str, Any]], None]:
    return DurableLog(path).append


def durable_fsync(path: Path) -> Callable[[dict[str, Any]], None]:
    return DurableLog(path, fsync=True).append


def open_append_close(path: Path) -> Callable[[dict[str, Any]], None]:
    def append(row: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    return append


def rotating_handler(path: Path) -> Callable[[dict[str, Any]], None]:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=10_485_760, backupCount=3, encoding="utf-8")
    logger = logging.Logger("bench")
    logger.addHandler(handler)

    def append(row: dict[str, Any]) -> None:
        logger.info("%s", json.dumps(row, ensure_ascii=False))

    append.close = handler.close  # type: ignore[attr-defined]
    return append


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "writer", [durable, open_append_close, rotating_handler, durable_fsync], ids=lambda w: w.__name__
)
def test_append(
    benchmark: Benchmark, writer: Callable[[Path], Callable[[dict[str, Any]], None]], size: str, tmp_path: Path
) -> None:
    rows = ROWS if SIZES[size] < 1000 else 100
    benchmark.group = f"append {rows} times {size}"  # type: ignore[attr-defined]
    path = tmp_path / "rows.jsonl"
    append = writer(path)
    row = {"schema_version": 4, "model": "m", "text": "x" * SIZES[size]}

    def many() -> None:
        for _ in range(rows):
            append(row)

    benchmark(many)
    getattr(append, "close", lambda: None)()
    assert json.loads(path.read_text(encoding="utf-8").split("\n", 1)[0]) == row


@pytest.mark.parametrize("reader", ["tail", "read everything"])
def test_last_five_rows(benchmark: Benchmark, reader: str, tmp_path: Path) -> None:
    benchmark.group = "the last 5 rows of 40 MB"  # type: ignore[attr-defined]
    log = DurableLog(tmp_path / "rows.jsonl")
    for n in range(410):
        log.append({"n": n, "text": "x" * 100_000})
    found = benchmark(lambda: log.tail(5) if reader == "tail" else list(log.read())[-5:])
    assert [row["n"] for row in found] == [405, 406, 407, 408, 409]

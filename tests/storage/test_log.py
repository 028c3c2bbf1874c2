"""What a durable log promises to one process: rows come back as they went in, files stay in their limits."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_helpers import case
from log_helpers import files_of, ids
from rune.errors import InvalidInput, StorageError
from rune.storage import log_reader
from rune.storage.log import DurableLog
from rune.storage.rows import decode_row, encode_row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "state" / "rows.jsonl"


@pytest.fixture(params=[1, 7, 1 << 18], ids=["chunks of 1", "chunks of 7", "chunks as usual"])
def any_chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_CHUNK", request.param)


# Rows

odd_text = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("\ud800\udfff\udcb2\ud83d\0\n\r\x1b\x7f\x85\u2028\u2029\ufeff\U0001f600"),
        st.characters(categories=["Cs", "Cc"]),
    ),
    max_size=20,
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | odd_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_text, inner, max_size=4),
    max_leaves=12,
)
json_rows = st.dictionaries(odd_text, json_values, max_size=5)


@settings(deadline=None)
@given(json_rows)
def test_every_json_object_is_one_line_of_utf8_and_comes_back(row: dict[str, Any]) -> None:
    line = encode_row(row)
    assert b"\n" not in line
    line.decode("utf-8")
    assert decode_row(line) == row
    assert json.loads(line) == row


@settings(deadline=None, max_examples=40)
@given(st.lists(json_rows, max_size=6))
def test_rows_come_back_in_order(rows: list[dict[str, Any]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = DurableLog(Path(folder) / "rows.jsonl", max_bytes=200, backups=100)
        for row in rows:
            log.append(row)
        assert list(log.read()) == rows
        assert list(log.read(newest_first=True)) == rows[::-1]
        assert log.skipped == 0
        log.close()


class Word(str):
    pass


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (float("nan"), None),
        (float("inf"), None),
        ([1.5, float("-inf"), "\ud800"], [1.5, None, "\ud800"]),
        ({"\ud800": float("nan")}, {"\ud800": None}),
        ((1, "\udfff"), [1, "\udfff"]),
        (Word("w"), "w"),
        ({1: "\ud800"}, {"1": "\ud800"}),
        (10**30, 10**30),
    ],
)
def test_what_json_has_no_word_for_is_written_as_the_nearest(value: Any, read: Any) -> None:
    assert decode_row(encode_row({"v": value})) == {"v": read}


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "row", [[], "x", 3, None, {"a": object()}, {"a": nested(100_000)}, {"\ud800": nested(100_000)}]
)
def test_what_is_no_row_is_refused_and_nothing_is_written(row: Any, path: Path) -> None:
    log = DurableLog(path)
    log.append({"id": 1})
    with pytest.raises(InvalidInput):
        log.append(row)
    assert ids(log) == [1] and log.skipped == 0


@pytest.mark.parametrize(
    "line",
    [b'{"a":NaN}', b'{"a":1e999}', b'{"a":"\\ud800"}', b'{"a":1}\r', b'  {"a":1}'],
)
def test_lines_that_others_write_are_read(line: bytes) -> None:
    assert isinstance(decode_row(line), dict)


@pytest.mark.parametrize(
    "line", [b'{"a":', b"\0\0\0", b'{"a":"\xe2\x82"}', b"null", b"[]", b"7", b'"x"', b"[" * 200_000]
)
def test_what_is_no_whole_object_is_no_row(line: bytes) -> None:
    assert decode_row(line) is None


# Torn ends


TORN = {
    "inside a name": b'{"schema_version":4,"mod',
    "inside a character": '{"schema_version":4,"model":"€'.encode()[:-1],
    "one byte": b"{",
    "all but the bracket": b'{"schema_version":4,"model":"torn"',
    "NUL bytes": b"\0" * 4096,
    "long": b'{"x":"' + b"y" * 1_000_000,
}


@pytest.mark.parametrize("name", TORN)
@pytest.mark.usefixtures("any_chunk")
def test_a_torn_end_loses_no_row_and_is_counted(name: str, path: Path, request: pytest.FixtureRequest) -> None:
    if name == "long" and "usual" not in request.node.name:
        pytest.skip("a million steps show nothing more")
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"id":"a"}\n' + TORN[name])
    log = DurableLog(path)
    assert ids(log) == ["a"] and log.skipped == 1
    log.append({"id": "b"})
    log.append({"id": "c"})
    for newest_first in (False, True):
        rows = [row["id"] for row in log.read(newest_first=newest_first)]
        assert rows == (["c", "b", "a"] if newest_first else ["a", "b", "c"]) and log.skipped == 1
    assert path.read_bytes() == b'{"id":"a"}\n' + TORN[name] + b'\n{"id":"b"}\n{"id":"c"}\n'


def test_the_public_case_of_a_torn_tail(path: Path) -> None:
    given_case = case("C43")
    path.parent.mkdir(parents=True)
    path.write_bytes(given_case["input"]["file_bytes_before"].encode())
    log = DurableLog(path)
    log.append(given_case["input"]["append"])
    assert [row["model"] for row in log.read()] == given_case["expected"]["read_traces"]
    assert log.skipped == 1


@pytest.mark.usefixtures("any_chunk")
def test_a_whole_last_row_without_its_newline_is_a_row(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"id":1}\n{"id":2}')
    log = DurableLog(path)
    assert ids(log) == [1, 2] and log.skipped == 0
    log.append({"id": 3})
    assert ids(log) == [1, 2, 3] and log.skipped == 0


@pytest.mark.usefixtures("any_chunk")
def test_lines_end_at_newlines_only_and_empty_ones_do_not_count(path: Path) -> None:
    path.parent.mkdir(parents=True)
    text = "a\u2028b\u2029c\x85d\x0be\x0cf"
    path.write_bytes(b'\n\n{"id":1}\r\n\n \n' + json.dumps({"id": text}, ensure_ascii=False).encode() + b"\n\n\n")
    log = DurableLog(path)
    assert ids(log) == [1, text] and log.skipped == 0
    assert [row["id"] for row in log.tail(5)] == [1, text] and log.skipped == 0


# Limits


def test_rotation_holds_the_limit_and_keeps_the_newest(path: Path) -> None:
    limits = case("C46")
    records, size = limits["input"]["records"], limits["input"]["record_bytes"]
    log = DurableLog(path)
    for n in range(records):
        row = {"id": n, "pad": ""}
        row["pad"] = "x" * (size - len(encode_row(row)) - 1)
        log.append(row)
    expected = limits["expected"]
    assert set(files_of(path)) == {
        f.replace("inference_traces.jsonl", "rows.jsonl") if "." != f[0] else "rows.jsonl" + f
        for f in expected["files"]
    }
    assert sum(files_of(path).values()) <= expected["total_bytes_max"]
    assert max(files_of(path).values()) <= 10_485_760
    kept = ids(log)
    assert kept == list(range(kept[0], records)) and kept[0] > 0
    assert [row["id"] for row in log.tail(5)] == list(range(records - 5, records))


def test_a_row_larger_than_a_file_is_written_whole_and_alone(path: Path) -> None:
    log = DurableLog(path, backups=4)
    big = {"id": "big", "pad": "x" * 11_000_000}
    for row in ({"id": 1}, big, {"id": 2}, {"id": 3}):
        log.append(row)
    assert [size > 10_485_760 for size in files_of(path).values()] == [False, True, False]
    assert ids(log) == [1, "big", 2, 3]
    assert log.tail(3)[0] == big


@pytest.mark.parametrize("backups", [0, 1, 2, 5])
def test_so_many_backups_are_kept(backups: int, path: Path) -> None:
    log = DurableLog(path, max_bytes=100, backups=backups)
    for n in range(1000):
        log.append({"id": n})
    assert len(files_of(path)) == backups + 1
    assert ids(log) == list(range(1000))[-len(ids(log)) :]
    assert all(size <= 100 for size in files_of(path).values())


def test_without_a_number_of_backups_nothing_is_rotated_or_deleted(path: Path) -> None:
    log = DurableLog(path, max_bytes=100, backups=None)
    for n in range(100):
        log.append({"id": n})
    assert list(files_of(path)) == ["rows.jsonl"] and ids(log) == list(range(100))


def test_fewer_backups_than_before_take_effect_at_the_next_rotation(path: Path) -> None:
    log = DurableLog(path, max_bytes=100, backups=12)
    for n in range(200):
        log.append({"id": n})
    assert len(files_of(path)) == 13
    fewer = DurableLog(path, max_bytes=100, backups=1)
    assert ids(fewer) == ids(log)
    for n in range(200, 220):
        fewer.append({"id": n})
    assert list(files_of(path)) == ["rows.jsonl", "rows.jsonl.1"] and ids(fewer)[-1] == 219


@pytest.mark.parametrize(("max_bytes", "backups"), [(0, 3), (-1, 3), (100, -1)])
def test_limits_that_are_none_are_refused(max_bytes: int, backups: int, path: Path) -> None:
    with pytest.raises(InvalidInput):
        DurableLog(path, max_bytes=max_bytes, backups=backups)


# Reading


@pytest.mark.usefixtures("any_chunk")
def test_reading_what_is_not_there_finds_nothing_and_makes_nothing(path: Path, tmp_path: Path) -> None:
    log = DurableLog(path)
    assert list(log.read()) == log.tail(3) == []
    assert list(tmp_path.iterdir()) == []
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert list(log.read()) == list(log.read(newest_first=True)) == []
    assert [p.name for p in path.parent.iterdir()] == ["rows.jsonl"]


def test_the_tail_reads_the_end_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DurableLog(path, max_bytes=2_000_000, backups=3)
    for n in range(3_000):
        log.append({"id": n, "pad": "x" * 1000})
    decoded: list[bytes] = []

    def counting(line: bytes) -> Any:
        decoded.append(line)
        return decode_row(line)

    monkeypatch.setattr(log_reader, "decode_row", counting)
    assert [row["id"] for row in log.tail(5)] == [2995, 2996, 2997, 2998, 2999]
    assert len(decoded) == 5
    assert log.tail(0) == log.tail(-1) == []
    assert len(log.tail(1_000_000)) == 3_000 == len(ids(log))


def test_a_reader_that_stops_early_closes_its_files(path: Path) -> None:
    log = DurableLog(path, max_bytes=100, backups=50)
    for n in range(100):
        log.append({"id": n})
    log.close()
    before = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    rows = log.read()
    assert next(rows)["id"] == 0
    rows.close()  # type: ignore[attr-defined]
    assert (len(os.listdir("/dev/fd")) if before else 0) == before


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_reader_sees_no_gap_while_others_rotate(newest_first: bool, path: Path) -> None:
    log = DurableLog(path, max_bytes=300, backups=6)
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            log.append({"id": written})
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reader = DurableLog(path, max_bytes=300, backups=6)
        deadline = time.monotonic() + 2.0
        reads = 0
        while time.monotonic() < deadline:
            least = written
            found = [row["id"] for row in reader.read(newest_first=newest_first)]
            if newest_first:
                found.reverse()
            assert found == list(range(found[0], found[-1] + 1)) if found else least == 0
            assert reader.skipped == 0
            assert not found or found[-1] >= least - 1
            reads += 1
        assert reads > 20 and written > 100
    finally:
        stop.set()
        writer.join()


def between(monkeypatch: pytest.MonkeyPatch, at: int, happen: Callable[[], None]) -> None:
    """Lets something happen before the reader opens its file number ``at``."""
    real, opened = log_reader._open, 0

    def slow_open(path: Path) -> Any:
        nonlocal opened
        if opened == at:
            happen()
        opened += 1
        return real(path)

    monkeypatch.setattr(log_reader, "_open", slow_open)


@pytest.mark.parametrize("rows", [1, 5, 9, 13, 40])
@pytest.mark.parametrize("at", range(5))
def test_rotations_between_any_two_steps_of_the_reader_lose_nothing_old(
    at: int, rows: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = DurableLog(path, max_bytes=40, backups=100)  # four rows a file
    for n in range(16):
        log.append({"id": n})

    def write() -> None:
        for n in range(16, 16 + rows):
            log.append({"id": n})

    between(monkeypatch, at, write)
    found = ids(log)
    assert found == list(range(len(found))) and len(found) >= 16


# Files


def test_files_and_folders_are_private(path: Path) -> None:
    before = os.umask(0)
    try:
        log = DurableLog(path, max_bytes=50, backups=2, fsync=True)
        for n in range(30):
            log.append({"id": n})
    finally:
        os.umask(before)
    for folder in (path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(list(path.parent.iterdir())) == 4
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {0o600}


def test_a_file_that_others_may_read_is_closed_to_them(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    path.chmod(0o644)
    DurableLog(path).append({"id": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="counts descriptors there")
def test_a_log_that_is_gone_holds_no_file(path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for n in range(20):
        DurableLog(path).append({"id": n})
        list(DurableLog(path).read())
    assert len(os.listdir("/dev/fd")) == before


@pytest.fixture
def log(path: Path) -> Iterator[DurableLog]:
    made = DurableLog(path)
    yield made
    made.close()


def test_files_and_folders_that_vanish_are_made_anew(log: DurableLog, path: Path) -> None:
    import shutil

    log.append({"id": 1})
    path.unlink()
    log.append({"id": 2})
    assert ids(log) == [2]
    path.unlink()
    path.with_name(path.name + ".lock").unlink()
    log.append({"id": 3})
    assert ids(log) == [3]
    shutil.rmtree(path.parent.parent)
    log.append({"id": 4})
    assert ids(log) == [4]


def test_a_file_where_the_folder_should_be_reads_empty_and_refuses_rows(log: DurableLog, path: Path) -> None:
    path.parent.parent.mkdir()
    path.parent.write_text("a file")
    assert list(log.read()) == []
    with pytest.raises(StorageError, match="RUNE_HOME"):
        log.append({"id": 1})


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_file_is_refused_for_reading_and_writing(kind: str, log: DurableLog, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(StorageError, match=r"rows\.jsonl"):
        list(log.read())
    with pytest.raises(StorageError, match=r"rows\.jsonl"):
        log.append({"id": 1})


def test_a_log_that_was_closed_opens_anew(log: DurableLog) -> None:
    log.append({"id": 1})
    log.close()
    log.close()
    log.append({"id": 2})
    assert ids(log) == [1, 2]


def test_a_link_to_another_place_is_followed(log: DurableLog, path: Path, tmp_path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "elsewhere.jsonl")
    log.append({"id": 1})
    assert (tmp_path / "elsewhere.jsonl").read_bytes() == b'{"id":1}\n'
    assert ids(log) == [1]

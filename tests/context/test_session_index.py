"""The index beside a session's file: a long session opens without being read, and an index that does not fit is no loss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from broker_helpers import use_kernels
from rune.context.conversation import Conversation
from rune.context.session_index import RECORD_BYTES
from rune.context.sessions import delete_session
from rune.errors import StorageError

CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": {"n": 1}}}


@pytest.fixture(autouse=True)
def _both_backends(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(kernels, monkeypatch)


def a_turn(number: int) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"question {number} \u00e9"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": f"result {number}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def written(home: Path, many: int = 6, *, fsync: bool = False) -> Conversation:
    made = Conversation.open("s", home, fsync=fsync)
    made.append([{"role": "system", "content": "Be brief."}, *a_turn(0)])
    made.set_state("note", {"a": 1})
    for number in range(1, many - 1):
        made.append(a_turn(number))
    made.append(a_turn(many)[:2])
    made.set_state("note", {"a": 2})
    return made


def index_of(home: Path, id: str = "s") -> Path:
    return home / "sessions" / "index" / f"{id}.chars4-1"


def state(conversation: Conversation) -> list[Any]:
    return [
        [list(turn) for turn in conversation.turns],
        [(turn.number, turn.time, turn.chain, turn.incomplete) for turn in conversation.turns],
        conversation.tokens,
        conversation.chain,
        conversation.system,
        conversation.state,
        conversation.completed_count,
        conversation.incomplete_count,
        conversation.window(60),
        conversation.whatif(60),
        conversation.problems,
    ]


@pytest.fixture
def read_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were read from the beginning on, or from where the index ends."""
    from rune.context.session_file import SessionFile

    counts: list[int] = []
    original = SessionFile.rows

    def counted(self: SessionFile) -> Iterator[Any]:
        counts.append(0)
        for row in original(self):
            counts[-1] += 1
            yield row

    monkeypatch.setattr(SessionFile, "rows", counted)
    return counts


def test_a_session_opens_by_its_index_as_it_was(tmp_path: Path, read_rows: list[int]) -> None:
    made = written(tmp_path)
    again = Conversation.open("s", tmp_path)
    assert read_rows[-1] == 0
    assert state(again) == state(made)
    assert [len(turn) for turn in again.turns_from(4)] == [4, 2]
    # The last turn alone was read to know that the index fits; the window reads what it gives.
    third = Conversation.open("s", tmp_path)
    assert third.window(60) == made.window(60)


def test_without_an_index_everything_is_read_and_the_next_turn_writes_it(tmp_path: Path, read_rows: list[int]) -> None:
    made = written(tmp_path)
    before = index_of(tmp_path).read_bytes()
    index_of(tmp_path).unlink()
    again = Conversation.open("s", tmp_path)
    assert read_rows[-1] == 9
    assert not index_of(tmp_path).exists(), "opening writes nothing"
    assert state(again) == state(made)
    again.append(a_turn(9))
    assert index_of(tmp_path).read_bytes()[: len(before)] == before
    assert Conversation.open("s", tmp_path).turns[-1] == a_turn(9)
    assert read_rows[-1] == 0


def test_an_index_that_is_behind_is_read_as_far_as_it_goes(tmp_path: Path, read_rows: list[int]) -> None:
    made = written(tmp_path)
    data = index_of(tmp_path).read_bytes()
    for cut in (RECORD_BYTES, RECORD_BYTES + 40):
        index_of(tmp_path).write_bytes(data[:-cut])
        again = Conversation.open("s", tmp_path)
        assert read_rows[-1] == -(-cut // RECORD_BYTES)
        assert state(again) == state(made)
        again.append(a_turn(8))
        made = Conversation.open("s", tmp_path)
        assert read_rows[-1] == 0 and made.turns[-1] == a_turn(8)
        data = index_of(tmp_path).read_bytes()


@pytest.mark.parametrize("damage", ["head", "middle", "of another session", "log cut", "garbage", "folder"])
def test_an_index_that_does_not_fit_is_left_alone(tmp_path: Path, damage: str, read_rows: list[int]) -> None:
    made = written(tmp_path)
    index, log = index_of(tmp_path), tmp_path / "sessions" / "s.jsonl"
    data = bytearray(index.read_bytes())
    if damage == "head":
        data[3] ^= 1
    elif damage == "middle":
        data[3 * RECORD_BYTES + 30] ^= 1
    elif damage == "of another session":
        other = Conversation.open("other", tmp_path, fsync=False)
        for number in range(20, 25):
            other.append(a_turn(number))
        data = bytearray(index_of(tmp_path, "other").read_bytes())
    elif damage == "log cut":
        lines = log.read_bytes().split(b"\n")
        log.write_bytes(b"\n".join(lines[:-2]) + b"\n")
    elif damage == "garbage":
        data = bytearray(b"x" * 1000)
    index.unlink()
    if damage == "folder":
        index.mkdir()
    else:
        index.write_bytes(data)
    again = Conversation.open("s", tmp_path)
    assert read_rows[-1] == (8 if damage == "log cut" else 9)
    assert [list(turn) for turn in again.turns] == [list(turn) for turn in made.turns]
    assert again.chain == made.chain and again.problems == []
    again.append(a_turn(7))
    last = Conversation.open("s", tmp_path)
    assert last.turns[-1] == a_turn(7) and last.chain == again.chain and last.problems == []


def test_a_turn_changed_in_the_file_behind_its_index_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    written(tmp_path)
    log = tmp_path / "sessions" / "s.jsonl"
    log.write_bytes(log.read_bytes().replace(b"question 2", b"question X"))
    again = Conversation.open("s", tmp_path)
    assert again.turns[2][0]["content"].startswith("question X")
    assert any("changed" in problem for problem in again.problems)


def test_a_file_emptied_under_an_open_session_is_an_error_and_no_other_turn(tmp_path: Path) -> None:
    written(tmp_path)
    again = Conversation.open("s", tmp_path)
    (tmp_path / "sessions" / "s.jsonl").write_bytes(b"")
    with pytest.raises(StorageError, match="turn 2 of session 's' is gone"):
        again.turns[2]


def test_two_writers_share_one_index(tmp_path: Path, read_rows: list[int]) -> None:
    one, two = Conversation.open("s", tmp_path, fsync=False), Conversation.open("s", tmp_path, fsync=False)
    for number in range(10):
        (one if number % 3 else two).append(a_turn(number))
    assert (index_of(tmp_path).stat().st_size // RECORD_BYTES - 1, len(two.turns)) == (10, 10)
    again = Conversation.open("s", tmp_path)
    assert read_rows[-1] == 0
    assert [turn[0]["content"] for turn in again.turns] == [f"question {number} \u00e9" for number in range(10)]


def test_a_torn_row_is_told_at_every_opening(tmp_path: Path) -> None:
    written(tmp_path)
    log = tmp_path / "sessions" / "s.jsonl"
    with log.open("ab") as file:
        file.write(b'{"turn": 99, "mess')
    again = Conversation.open("s", tmp_path)
    assert again.problems == ["1 torn rows were skipped"]
    again.append(a_turn(7))
    for _ in range(2):
        last = Conversation.open("s", tmp_path)
        assert last.problems == ["1 torn rows were skipped"] and last.turns[-1] == a_turn(7)


def test_every_estimator_has_its_own_and_they_go_with_the_session(tmp_path: Path) -> None:
    written(tmp_path)
    for id in ("s", "s.x"):
        other = Conversation.open(id, tmp_path, estimator="script", fsync=False)
        other.append(a_turn(7))
    assert Conversation.open("s", tmp_path, estimator="script").tokens == Conversation.open(
        "s", tmp_path, estimator="script"
    ).tokens_from(0)
    names = {path.name for path in (tmp_path / "sessions" / "index").iterdir()}
    assert len([name for name in names if name.startswith("s.script")]) == 1 and "s.chars4-1" in names
    delete_session("s", tmp_path)
    assert {path.name.rpartition(".")[0] for path in (tmp_path / "sessions" / "index").iterdir()} == {"s.x"}


def test_the_index_holds_no_text(tmp_path: Path) -> None:
    written(tmp_path)
    data = index_of(tmp_path).read_bytes()
    assert b"question" not in data and b"answer" not in data
    assert len(data) == 10 * RECORD_BYTES
    rows = (tmp_path / "sessions" / "s.jsonl").read_bytes().splitlines()
    assert len(rows) == 9 and all(json.loads(row) for row in rows)


def test_an_imported_session_comes_with_its_index(tmp_path: Path, read_rows: list[int]) -> None:
    made = Conversation.from_messages("s", [{"role": "system", "content": "Be brief."}, *a_turn(0), *a_turn(1)])
    made.save_as_new(tmp_path)
    again = Conversation.open("s", tmp_path)
    assert read_rows[-1] == 0 and again.system == ("Be brief.",)
    assert [list(turn) for turn in again.turns] == [list(turn) for turn in made.turns]
    assert [turn.time for turn in again.turns] == [turn.time for turn in made.turns]


def test_an_index_left_behind_by_a_removed_file_is_not_mixed_with_a_new_one(
    tmp_path: Path, read_rows: list[int]
) -> None:
    written(tmp_path)
    (tmp_path / "sessions" / "s.jsonl").unlink()
    made = Conversation.open("s", tmp_path, fsync=False)
    for number in range(3):
        made.append(a_turn(number))
    again = Conversation.open("s", tmp_path, fsync=False)
    assert [list(turn) for turn in again.turns] == [a_turn(number) for number in range(3)] and again.problems == []
    again.append(a_turn(4))
    assert len(Conversation.open("s", tmp_path).turns) == 4 and read_rows[-1] == 0

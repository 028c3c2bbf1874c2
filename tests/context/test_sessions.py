"""Sessions as files: what can be imported, and what is said about what cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_helpers import SHARED, turn
from rune.context.conversation import Conversation
from rune.context.sessions import delete_session, export_lines, import_messages, list_sessions, parse_sessions
from rune.errors import InvalidInput, StorageError

MESSAGES = [{"role": "system", "content": "Be brief."}, *turn(1), *turn(2)]
LINES = "\n".join(json.dumps(m) for m in MESSAGES)


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        LINES + "\n",
        "\n\n" + LINES.replace("\n", "\r\n\r\n"),
        "\ufeff" + LINES,
        json.dumps(MESSAGES),
        json.dumps(MESSAGES, indent=2),
        json.dumps({"messages": MESSAGES}),
        json.dumps({"messages": MESSAGES}, indent=2),
        json.dumps([{"messages": MESSAGES}]),
    ],
    ids=["lines", "newline", "crlf", "bom", "array", "array indented", "object", "object indented", "array of object"],
)
def test_every_form_of_one_session_is_read(text: str) -> None:
    for data in (text, text.encode()):
        (found,) = parse_sessions(data)
        assert (found.id, found.messages) == (None, MESSAGES)


def test_one_session_on_each_line_is_read_with_its_id() -> None:
    text = "\n".join(json.dumps({"id": f"s{n}", "messages": turn(n), "other": 1}) for n in range(3))
    assert [(s.id, s.messages) for s in parse_sessions(text)] == [(f"s{n}", turn(n)) for n in range(3)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing in it"),
        (" \n \n", "nothing in it"),
        ("[]", "no messages"),
        (LINES + '\n{"role": "user", "content": "torn', "line 6 is no JSON"),
        ('{"role": "user", "content": }\n' + LINES, "line 1 is no JSON"),
        (LINES + '\n{"role": "alien", "content": "x"}', "line 6: message 5 has the role 'alien'"),
        (LINES + "\n3", "line 6: message 5 is a int"),
        (LINES + '\n{"messages": []}', "line 6: a session stands among single messages"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [1]}\n{"messages": [1]}', "line 1: message 0 is a int"),
        ('[{"messages": [{"role": "user", "content": 1}]}]', "content of type int"),
        ('{"a": 1}', "role None"),
        ("3", "is a int"),
        ('[{"role": "user",\n "content": "a"},\n oops]', "line 3 is no JSON"),
        ("plain text", "line 1 is no JSON"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_sessions(text)


def test_bytes_that_are_no_utf8_are_named_by_their_line() -> None:
    with pytest.raises(InvalidInput, match="line 3 is not UTF-8: byte 0xff"):
        parse_sessions(b'{"role": "user", "content": "a"}\n\n{"role": "user", "content": "\xff"}')


def test_a_broken_line_imports_nothing(tmp_path: Path) -> None:
    text = "\n".join([json.dumps({"id": "a", "messages": turn(1)}), json.dumps({"id": "b", "messages": [7]})])
    with pytest.raises(InvalidInput, match="line 2"):
        import_messages(text, home=tmp_path)
    assert list_sessions(tmp_path) == []


def test_an_import_is_a_session_on_disk(tmp_path: Path) -> None:
    (made,) = import_messages(LINES, id="old", home=tmp_path)
    assert made.system == ("Be brief.",) and made.messages() == MESSAGES[1:]
    made.append(turn(3))
    again = Conversation.open("old", tmp_path)
    assert again.messages() == [*MESSAGES[1:], *turn(3)] and again.problems == []
    assert again.path is not None and again.path.stat().st_mode & 0o077 == 0
    assert [p.name for p in again.path.parent.glob(".*.jsonl*.*-*")] == []


def test_several_sessions_get_their_own_ids_or_numbered_ones(tmp_path: Path) -> None:
    text = "\n".join(json.dumps({"id": f"s{n}", "messages": turn(n)}) for n in range(2))
    assert [c.id for c in import_messages(text, home=tmp_path)] == ["s0", "s1"]
    assert [c.id for c in import_messages(text, id="x", home=tmp_path)] == ["x-1", "x-2"]
    assert {info.id for info in list_sessions(tmp_path)} == {"s0", "s1", "x-1", "x-2"}


def test_a_default_id_is_for_sessions_that_have_none(tmp_path: Path) -> None:
    assert [c.id for c in import_messages(LINES, default_id="chat", home=tmp_path)] == ["chat"]
    text = "\n".join([json.dumps({"id": "own", "messages": turn(1)}), json.dumps({"messages": turn(2)})])
    assert [c.id for c in import_messages(text, default_id="log", home=tmp_path)] == ["own", "log-2"]


@pytest.mark.parametrize(
    ("ids", "id", "words"),
    [
        ([None], None, "without an id"),
        (["a", "a"], None, "two sessions have the id 'a'"),
        (["../a"], None, "a"),
        ([None], "a/b", "a/b"),
        ([None], "taken", "'taken' already"),
        (["new", "taken"], None, "'taken' already"),
    ],
)
def test_an_id_that_cannot_be_used_imports_nothing(ids: list[Any], id: str | None, words: str, tmp_path: Path) -> None:
    import_messages(LINES, id="taken", home=tmp_path)
    text = "\n".join(json.dumps({"id": given, "messages": turn(1)}) for given in ids)
    with pytest.raises(InvalidInput, match=words):
        import_messages(text, id=id, home=tmp_path)
    assert [info.id for info in list_sessions(tmp_path)] == ["taken"]


def test_export_gives_lines_that_import_reads_back(tmp_path: Path) -> None:
    odd = [{"role": "user", "content": "\udcb2 你好\n\u2028"}, {"role": "assistant", "content": "ok"}]
    conversation = Conversation.from_messages("s", [*MESSAGES, *odd])
    text = "\n".join(export_lines(conversation))
    text.encode("utf-8")
    (found,) = parse_sessions(text)
    assert found.messages == [*MESSAGES, *odd]


def test_an_import_that_fails_on_the_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, saved = Conversation.save_as_new, []

    def failing(self: Conversation, home: Any = None) -> Path:
        if saved:
            raise StorageError("the disk is full")
        saved.append(self.id)
        return save(self, home)

    monkeypatch.setattr(Conversation, "save_as_new", failing)
    text = "\n".join(json.dumps({"id": f"s{n}", "messages": turn(n)}) for n in range(3))
    with pytest.raises(StorageError):
        import_messages(text, home=tmp_path)
    assert saved == ["s0"] and list_sessions(tmp_path) == []


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    Conversation.open("s", tmp_path).append(turn(1))
    with pytest.raises(InvalidInput, match="'s' already"):
        Conversation.from_messages("s", turn(2)).save_as_new(tmp_path)
    assert Conversation.open("s", tmp_path).messages() == turn(1)
    assert len(list((tmp_path / "sessions").glob(".*"))) == 0


def test_a_home_where_nothing_can_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file where the folder should be")
    with pytest.raises(StorageError):
        import_messages(LINES, id="s", home=tmp_path)


def test_list_and_delete(tmp_path: Path) -> None:
    assert list_sessions(tmp_path) == []
    for name in ("a", "b"):
        Conversation.open(name, tmp_path).append(turn(1))
    infos = list_sessions(tmp_path)
    assert {info.id for info in infos} == {"a", "b"} and all(info.rows == 1 and info.bytes > 50 for info in infos)
    delete_session("a", tmp_path)
    assert [info.id for info in list_sessions(tmp_path)] == ["b"]
    with pytest.raises(InvalidInput, match="no session 'a'"):
        delete_session("a", tmp_path)


@pytest.mark.parametrize("name", ["tau_airline", "swe_agent", "toolbench", "oasst_en"])
def test_real_files_are_imported_whole(name: str, tmp_path: Path) -> None:
    path = SHARED / "data" / name / "sessions.jsonl"
    if not path.exists():
        pytest.skip("the real conversations are not here")
    lines = path.read_bytes().splitlines()[:5]
    made = import_messages(b"\n".join(lines), home=tmp_path)
    for conversation, line in zip(made, lines, strict=True):
        messages = json.loads(line)["messages"]
        system = sum(m["role"] == "system" for m in messages)
        assert len(conversation.messages()) == len(messages) - system and len(conversation.system) == min(system, 1)

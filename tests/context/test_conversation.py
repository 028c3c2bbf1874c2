"""Conversations: turns kept as they came, offered when complete, and never lost once acknowledged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_helpers import turn, use_kernels
from rune.context.conversation import Conversation
from rune.context.turns import Turn
from rune.errors import InvalidInput
from rune.kernels import Ledger, get_estimator

CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": {"n": 1}}}
DANGLING = [
    {"role": "user", "content": "Deploy it."},
    {"role": "assistant", "content": "Deploying.", "tool_calls": [CALL]},
]


@pytest.fixture(autouse=True)
def _both_backends(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(kernels, monkeypatch)


def test_messages_are_cut_into_turns_and_measured() -> None:
    conversation = Conversation.from_messages("s", [*turn(1), *turn(2), *turn(3, 50)])
    assert [len(t) for t in conversation.turns] == [2, 2, 2]
    assert conversation.turns[1] == turn(2)
    assert conversation.tokens == sum(len(m["content"]) // 4 for m in conversation.messages())
    assert conversation.tokens == 4 + 4 + 50


def test_thinking_is_left_out_of_what_is_kept() -> None:
    conversation = Conversation("s")
    conversation.append(
        [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4", "thinking": "abcd" * 2000}]
    )
    assert conversation.tokens == 1
    assert "thinking" not in conversation.messages()[1]


def test_an_incomplete_turn_is_kept_and_visible_and_never_offered() -> None:
    conversation = Conversation("s")
    conversation.append(turn(1))
    (added,) = conversation.append(DANGLING)
    assert added.incomplete == "tool call without result"
    assert len(conversation.turns) == 2 and conversation.incomplete_turns() == [added]
    assert conversation.completed_turns() == [conversation.turns[0]]
    assert conversation.window(10**6) == turn(1)
    assert conversation.tokens == Conversation.from_messages("t", turn(1)).tokens


def test_window_gives_the_newest_whole_turns_that_fit_and_whatif_their_numbers() -> None:
    conversation = Conversation("s")
    for n in range(10):
        conversation.append(turn(n, 100))
        if n == 7:
            conversation.append(DANGLING)
    assert conversation.window(350) == [*turn(7, 100), *turn(8, 100), *turn(9, 100)]
    assert conversation.whatif(350) == {
        "budget": 350,
        "turns": 3,
        "tokens": 300,
        "dropped_turns": 7,
        "dropped_tokens": 700,
    }
    assert conversation.window(99) == [] and conversation.window(-5) == []
    assert len(conversation.window(1000)) == 20


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=12), st.integers(-1, 200))
def test_window_is_the_longest_tail_of_completed_turns_within_the_budget(
    turns: list[tuple[int, bool]], budget: int
) -> None:
    conversation = Conversation("s")
    for n, (size, complete) in enumerate(turns):
        conversation.append(turn(n, size) if complete else [{"role": "user", "content": "x" * 4 * size}])
    kept: list[Any] = []
    room = budget
    for one in reversed(conversation.completed_turns()):
        room -= one.tokens(get_estimator("chars4"))
        if room < 0:
            break
        kept[:0] = list(one)
    assert conversation.window(budget) == kept


def test_system_messages_are_kept_apart_each_once() -> None:
    conversation = Conversation.from_messages(
        "s", [{"role": "system", "content": "A"}, *turn(1), {"role": "system", "content": "B"}, *turn(2)]
    )
    conversation.append([{"role": "system", "content": "A"}, *turn(3)])
    assert conversation.system == ("A", "B") and len(conversation.turns) == 3
    assert all(m["role"] != "system" for m in conversation.messages())


def test_what_is_handed_out_is_a_copy() -> None:
    conversation = Conversation.from_messages("s", [{**m} for m in turn(1)])
    conversation.messages()[0]["content"] = "changed"
    conversation.turns[0][0]["content"] = "changed"
    for message in conversation.turns[0]:
        message["content"] = "changed"
    assert conversation.messages() == turn(1)


def test_a_copy_shares_no_tool_call_and_no_image() -> None:
    given_messages = [
        {"role": "user", "content": "look", "images": ["AAAA"]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
    ]
    one = Turn(given_messages)
    for message in one:
        if "images" in message:
            message["images"].append("BBBB")
        else:
            message["tool_calls"][0]["function"]["arguments"]["n"] = 99
    assert one[0]["images"] == ["AAAA"] and one[1]["tool_calls"][0]["function"]["arguments"] == {"n": 1}
    assert CALL["function"] == {"name": "read", "arguments": {"n": 1}}


def test_what_is_given_is_not_changed() -> None:
    given_messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
    ]
    before = json.dumps(given_messages)
    Conversation.from_messages("s", given_messages)
    assert json.dumps(given_messages) == before


def test_a_message_without_a_normal_form_adds_nothing() -> None:
    conversation = Conversation.from_messages("s", turn(1))
    with pytest.raises(InvalidInput, match="message 1"):
        conversation.append([{"role": "user", "content": "x"}, {"role": "alien", "content": "y"}])
    assert len(conversation.turns) == 1


@pytest.mark.parametrize("id", ["", "..", "a/b", "/etc/passwd", "a\0b", "x" * 300, None])
def test_an_id_that_cannot_name_a_file_is_refused(id: Any) -> None:
    with pytest.raises(InvalidInput):
        Conversation(id)


def test_the_chain_is_that_of_a_ledger_over_the_turns() -> None:
    conversation = Conversation.from_messages("s", [*turn(1), *turn(2), *DANGLING])
    ledger = Ledger()
    for one in conversation.turns:
        ledger.append([], one.canonical())
    assert [one.chain for one in conversation.turns] == [ledger.chain(i) for i in range(3)]
    assert conversation.chain == ledger.chain(2)


# On disk


def test_a_persisted_conversation_comes_back_as_it_was(tmp_path: Path) -> None:
    conversation = Conversation.open("s", tmp_path)
    conversation.append([{"role": "system", "content": "Be brief."}, *turn(1)])
    conversation.append(DANGLING)
    conversation.append([{"role": "user", "content": "\udcb2 你好 \0"}, {"role": "assistant", "content": "ok \ud83d"}])
    again = Conversation.open("s", tmp_path)
    assert again.turns == conversation.turns and again.system == ("Be brief.",)
    assert (again.tokens, again.chain, again.problems) == (conversation.tokens, conversation.chain, [])
    assert [t.time for t in again.turns] == [t.time for t in conversation.turns]
    again.append(turn(9))
    assert [t.number for t in Conversation.open("s", tmp_path).turns] == [0, 1, 2, 3]


def test_a_torn_row_is_skipped_and_reported_and_the_rest_is_there(tmp_path: Path) -> None:
    conversation = Conversation.open("s", tmp_path)
    for n in range(3):
        conversation.append(turn(n))
    assert conversation.path is not None
    whole = conversation.path.read_bytes()
    conversation.path.write_bytes(whole[:-20])
    again = Conversation.open("s", tmp_path)
    assert again.messages() == [*turn(0), *turn(1)]
    assert any("torn" in problem for problem in again.problems)
    again.append(turn(7))
    last = Conversation.open("s", tmp_path)
    assert last.messages() == [*turn(0), *turn(1), *turn(7)]


def test_a_lost_or_changed_turn_is_reported_once(tmp_path: Path) -> None:
    conversation = Conversation.open("s", tmp_path)
    for n in range(5):
        conversation.append(turn(n))
    assert conversation.path is not None
    rows = conversation.path.read_text().splitlines()
    conversation.path.write_text("\n".join([*rows[:2], *rows[3:]]) + "\n")
    again = Conversation.open("s", tmp_path)
    assert [t.number for t in again.turns] == [0, 1, 2, 3]
    assert len(again.problems) == 1 and "turn 2" in again.problems[0]
    assert again.chain == conversation.chain


@pytest.mark.parametrize(
    "row", ['{"messages": [{"role": "alien"}]}', '{"messages": []}', '{"messages": 3}', '{"turn": 1}', "[]", "3"]
)
def test_a_row_that_is_no_turn_is_skipped_and_reported(row: str, tmp_path: Path) -> None:
    conversation = Conversation.open("s", tmp_path)
    conversation.append(turn(1))
    assert conversation.path is not None
    with conversation.path.open("a") as file:
        file.write(row + "\n")
    again = Conversation.open("s", tmp_path)
    assert again.messages() == turn(1) and len(again.problems) == 1


def test_what_another_process_appended_is_there_before_the_next_append(tmp_path: Path) -> None:
    ours = Conversation.open("s", tmp_path)
    ours.append(turn(1))
    Conversation.open("s", tmp_path).append(turn(2))
    ours.append(turn(3))
    assert ours.messages() == [*turn(1), *turn(2), *turn(3)]
    again = Conversation.open("s", tmp_path)
    assert again.messages() == ours.messages() and again.problems == []


def test_two_processes_that_append_at_once_lose_nothing_and_follow_one_another(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from rune.context.conversation import Conversation\n"
        "conversation = Conversation.open('s', sys.argv[1])\n"
        "for n in range(30):\n"
        "    text = f'{sys.argv[2]}{n}'\n"
        "    conversation.append([{'role': 'user', 'content': text}, {'role': 'assistant', 'content': 'ok'}])\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name]) for name in "ab"]
    assert [child.wait() for child in children] == [0, 0]
    again = Conversation.open("s", tmp_path)
    asked = [t[0]["content"] for t in again.turns]
    assert [text for text in asked if text[0] == "a"] == [f"a{n}" for n in range(30)]
    assert [text for text in asked if text[0] == "b"] == [f"b{n}" for n in range(30)]
    assert again.problems == []


def test_state_is_kept_with_the_conversation_the_last_value_of_a_name(tmp_path: Path) -> None:
    conversation = Conversation.open("s", tmp_path)
    conversation.append(turn(1))
    conversation.set_state("summary", {"text": "first"})
    conversation.append(turn(2))
    conversation.set_state("summary", {"text": "second"})
    again = Conversation.open("s", tmp_path)
    assert again.state == {"summary": {"text": "second"}} == conversation.state
    assert again.messages() == [*turn(1), *turn(2)] and again.problems == []


def test_a_tool_call_that_json_has_no_words_for_is_refused_and_adds_nothing() -> None:
    conversation = Conversation("s")
    odd = {"id": "1", "function": {"name": "f", "arguments": {"n": {1, 2}}}}
    with pytest.raises(InvalidInput, match="message 1"):
        conversation.append([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [odd]}])
    assert conversation.turns == () and conversation.system == ()


def test_a_home_that_cannot_be_written_degrades_and_keeps_the_turns_in_memory(tmp_path: Path) -> None:
    from rune.subsystem_health import turn as health_turn

    (tmp_path / "sessions").write_text("a file where the folder should be")
    with health_turn() as health:
        conversation = Conversation.open("s", tmp_path)
        conversation.append(turn(1))
        assert "storage.degraded" in health.degraded
    assert conversation.messages() == turn(1) and conversation.unsaved == 1
    (tmp_path / "sessions").unlink()
    conversation.append(turn(2))
    assert conversation.unsaved == 0
    assert Conversation.open("s", tmp_path).messages() == [*turn(1), *turn(2)]


def test_acknowledged_turns_survive_a_kill(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from rune.context.conversation import Conversation\n"
        "conversation = Conversation.open('s', sys.argv[1])\n"
        "for n in range(10_000):\n"
        "    conversation.append([{'role': 'user', 'content': f'q{n}'}, {'role': 'assistant', 'content': 'a' * 500}])\n"
        "    os.write(1, b'%d\\n' % n)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ})
    assert child.stdout is not None
    acknowledged = -1
    for line in child.stdout:
        acknowledged = int(line)
        if acknowledged >= 25:
            child.kill()
            break
    acknowledged = max([acknowledged, *(int(line) for line in child.stdout if line.endswith(b"\n"))])
    child.stdout.close()
    child.wait()
    again = Conversation.open("s", tmp_path)
    asked = [t[0]["content"] for t in again.turns]
    assert asked[: acknowledged + 1] == [f"q{n}" for n in range(acknowledged + 1)]


def test_the_file_is_private(tmp_path: Path) -> None:
    conversation = Conversation.open("s", tmp_path)
    conversation.append(turn(1))
    assert conversation.path is not None
    assert conversation.path.stat().st_mode & 0o077 == 0
    assert conversation.path.parent.stat().st_mode & 0o077 == 0


# Turns


def test_a_turn_holds_no_thinking() -> None:
    assert "thinking" not in Turn([{"role": "assistant", "content": "4", "thinking": "2 and 2"}])[0]


def test_a_turn_reads_like_a_list_of_messages() -> None:
    one = Turn(turn(1))
    assert len(one) == 2 and one[0]["role"] == "user" and one[-1]["content"] == "Answer 1."
    assert one[0:1] == turn(1)[:1] and list(one) == turn(1) == one
    assert one != Turn(turn(2)) and one != "text"


def test_a_turn_is_measured_once_per_estimator() -> None:
    class Counting:
        key = "counting/1"
        calls = 0

        def many(self, texts: list[str], /) -> list[int]:
            self.calls += 1
            return [1 for _ in texts]

    counting = Counting()
    one = Turn([{"role": "user", "content": "look", "images": ["AAAA"]}, {"role": "assistant", "content": "nice"}])
    assert one.tokens(counting) == one.tokens(counting) == 2 + 768
    assert counting.calls == 1

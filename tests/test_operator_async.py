"""``arun``: the same run for an event loop, which goes on meanwhile, and whose cancellation stops the server's work."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, only_row, operator_of, rows, sent_by
from playback import PlaybackServer, ndjson, reply_lines
from rune import Conversation, OllamaChatTransport
from rune.errors import InvalidInput
from scripted import Sent


def test_many_runs_side_by_side_give_what_run_gives(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=20)

    def answer(sent: Sent) -> str:
        together.wait()  # holds until all three are under way: none of them blocks the loop
        return "about " + sent.messages[-1]["content"]

    operator = operator_of(tmp_path / "home", [answer])

    async def main() -> list[Any]:
        sessions = [Conversation(name) for name in "abc"]
        runs = [operator.arun(f"task {session.id}", session, "api", num_predict=50) for session in sessions]
        return await asyncio.gather(*runs)

    responses = asyncio.run(main())
    assert [response.text for response in responses] == ["about task a", "about task b", "about task c"]
    assert {row["ext"]["run_id"] for row in rows(tmp_path / "home")} == {response.run_id for response in responses}
    assert all(row["channel"] == "api" and row["ext"]["num_predict"] == 50 for row in rows(tmp_path / "home"))
    assert len(sent_by(operator)) == 3


def test_events_come_in_the_loops_own_thread_and_in_order(tmp_path: Path) -> None:
    with PlaybackServer({"/api/chat": ndjson(*reply_lines("one two three"))}) as server:
        operator = operator_of(tmp_path / "home", OllamaChatTransport(server.url))
        heard: list[tuple[str, int]] = []

        async def main() -> Any:
            def hear(event: Any) -> None:
                heard.append((getattr(event, "text", ""), threading.get_ident()))

            response = await operator.arun("count", on_event=hear)
            await asyncio.sleep(0)  # what was handed to the loop before the end is called now
            return response

        response = asyncio.run(main())
    assert response.success and "".join(text for text, _ in heard) == response.text == "one two three"
    assert {thread for _, thread in heard} == {threading.get_ident()}


def test_cancelling_the_task_closes_the_connection_and_leaves_one_row(tmp_path: Path) -> None:
    slow = ndjson(*reply_lines("word " * 2000), pause=0.02)
    with PlaybackServer({"/api/chat": slow}) as server:
        operator = operator_of(tmp_path / "home", OllamaChatTransport(server.url))
        session = Conversation("s")

        async def main() -> None:
            begun = asyncio.Event()
            task = asyncio.create_task(operator.arun("talk", session, on_event=lambda event: begun.set()))
            await asyncio.wait_for(begun.wait(), 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert server.hung_up.acquire(timeout=20), "the server was left working"
    row = only_row(tmp_path / "home")
    assert row["success"] is False and row["error"] == "cancelled"
    assert row["ext"]["partial_text"].startswith("word") and session.turns == ()


def test_mistakes_are_raised_and_failures_are_responses(tmp_path: Path) -> None:
    operator = operator_of(tmp_path / "home", ["never"], facts=facts_of(2100))

    async def main() -> Any:
        with pytest.raises(InvalidInput):
            await operator.arun("  ")
        return await operator.arun("too much for this window")

    response = asyncio.run(main())
    assert not response.success and "ContextOverflowError" in response.error
    assert only_row(tmp_path / "home")["success"] is False

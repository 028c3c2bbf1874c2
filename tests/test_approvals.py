"""Turns that wait for an approval: what is kept, what goes on from it, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from operator_helpers import facts_of, only_row, operator_of, rows, sent_by
from rune import Conversation, RuneOperator
from rune.context.compaction import PENDING_APPROVAL
from rune.errors import ApprovalError, InvalidInput, ServerUnreachable, StorageError, TransportError
from rune.operator_approvals import forget_pending
from rune.paths import journal, pending_dir
from rune.runtime.approvals import PendingRuns, seal
from rune.runtime.events import ToolFinished, ToolStarted
from rune.runtime.num_ctx import sticky
from rune.runtime.tool_executor import TOOLS, Tool, make_tool
from rune.storage.log import DurableLog
from rune.traces.record import verify_row
from scripted import calls, reply


class Shell:
    """Tools that keep what they were called with."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @property
    def tools(self) -> dict[str, Tool]:
        def deploy(place: str, times: int = 1) -> str:
            """Deploys the program."""
            self.done.append(f"deploy {place} {times}")
            return f"deployed to {place}"

        def look(what: str) -> str:
            """Looks at something."""
            self.done.append(f"look {what}")
            return f"{what} is fine"

        return {"deploy": make_tool(deploy, approval=True), "look": make_tool(look)}


DEPLOY = ("deploy", {"place": "production"})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    sticky.clear()
    return tmp_path / "home"


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.fixture
def operator(home: Path, shell: Shell) -> Callable[..., RuneOperator]:
    """An operator of the same home: what a new process would have, a new scripted model included."""

    def make(*script: Any, **values: Any) -> RuneOperator:
        values = {"tools": shell.tools, "facts": facts_of(8192, "tools"), **values}
        return operator_of(home, list(script), **values)

    return make


def waiting(home: Path) -> dict[str, Any]:
    (path,) = pending_dir(home).glob("*.json")
    return json.loads(path.read_bytes())


def files(home: Path) -> list[str]:
    return sorted(os.listdir(pending_dir(home)))


# What is kept


def test_a_call_that_needs_an_approval_ends_the_turn_as_pending(home: Path, operator: Any, shell: Shell) -> None:
    asking = operator(calls(("look", {"what": "the tests"}), DEPLOY, text="I will deploy it."))
    session = Conversation.open("s", home)
    response = asking.run("Deploy it", session)
    state = response.pending_state
    assert (response.success, response.done_reason, response.text) == (False, "pending", "I will deploy it.")
    assert response.error == "waiting for an approval of deploy" and response.exception is None
    assert shell.done == ["look the tests"]
    assert state == waiting(home)
    assert state["id"] == response.run_id and [c["function"]["name"] for c in state["pending_calls"]] == ["deploy"]
    assert state["messages"] == sent_by(asking)[0].messages == only_row(home)["capsule_messages"]
    capsule = state["context_capsule"]
    assert capsule["token_count"] == only_row(home)["capsule_token_count"]
    assert {block["name"] for block in capsule["blocks"]} >= {"persona", "tools", "user", "tool_schemas"}
    assert session.turns == () and session.state_of(PENDING_APPROVAL)["id"] == response.run_id
    (name,) = files(home)
    assert stat.S_IMODE((pending_dir(home) / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(pending_dir(home).stat().st_mode) == 0o700
    row = only_row(home)
    assert (row["success"], row["error"]) == (False, "waiting for an approval of deploy") and verify_row(row)
    assert row["ext"]["pending"]["sha256"] == state["sha256"] and row["ext"]["done_reason"] == "pending"
    assert not response.warnings


def test_a_call_that_could_not_be_made_waits_for_nobody(home: Path, operator: Any, shell: Shell) -> None:
    asking = operator(calls(("deploy", {"where": 1}), ("nothing", {})), "I could not.")
    assert asking.run("Deploy it").text == "I could not."
    assert shell.done == [] and not pending_dir(home).exists()


def test_a_setting_may_approve(home: Path, operator: Any, shell: Shell) -> None:
    assert operator(calls(DEPLOY), "Done.", auto_approve="deploy").run("Deploy it").success
    assert shell.done == ["deploy production 1"]


def test_what_cannot_be_kept_is_an_error_and_nothing_is_run(home: Path, operator: Any, shell: Shell) -> None:
    pending_dir(home).parent.mkdir(parents=True)
    pending_dir(home).write_text("in the way")
    response = operator(calls(DEPLOY), "Done.").run("Deploy it")
    assert not response.success and isinstance(response.exception, StorageError) and response.pending_state is None
    assert shell.done == []


# Going on


def test_another_process_goes_on_with_the_very_same_context(home: Path, operator: Any, shell: Shell) -> None:
    session = Conversation.open("s", home)
    operator("Hello.").run("Hi", session)
    first = operator(calls(("look", {"what": "the tests"})), calls(DEPLOY, text="I will."))
    pending = first.run("Deploy it", session)
    second = operator("It is deployed.")
    heard: list[Any] = []
    response = second.resume(pending.run_id[:6], "approve", on_event=heard.append)
    assert (response.success, response.text) == (True, "It is deployed.")
    assert shell.done == ["look the tests", "deploy production 1"]
    before, (after,) = sent_by(first)[-1], sent_by(second)
    assert after.messages[: len(before.messages)] == before.messages
    asked, result = after.messages[len(before.messages) :]
    assert asked["tool_calls"][0]["function"]["name"] == "deploy" and asked["content"] == "I will."
    assert result == {
        "role": "tool",
        "content": "deployed to production",
        "tool_call_id": "call_0",
        "tool_name": "deploy",
    }
    assert after.tools == before.tools
    assert (after.options["num_ctx"], after.model) == (before.options["num_ctx"], before.model)
    assert [type(event) for event in heard if isinstance(event, ToolStarted | ToolFinished)] == [
        ToolStarted,
        ToolFinished,
    ]
    reopened = Conversation.open("s", home)
    assert reopened.state_of(PENDING_APPROVAL) is None and reopened.turns[1].complete
    assert [m["role"] for m in reopened.turns[1]] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert files(home) == []


def test_each_of_the_two_runs_has_one_row_and_both_say_what_was_sent(home: Path, operator: Any) -> None:
    first = operator(calls(DEPLOY))
    pending = first.run("Deploy it")
    second = operator("It is deployed.")
    response = second.resume(pending.run_id, "approve")
    asked, answered = rows(home)
    assert asked["capsule_messages"] == answered["capsule_messages"] == sent_by(first)[0].messages
    for field in ("capsule_content_hashes", "capsule_token_count", "per_block_tokens", "task_id", "selected_tools"):
        assert asked[field] == answered[field], field
    assert second.engine()[0].sent[0].messages[: len(asked["capsule_messages"])] == answered["capsule_messages"]
    assert asked["ext"]["run_id"] != answered["ext"]["run_id"] == response.run_id
    assert answered["ext"]["resumed"] == {
        "run_id": pending.run_id,
        "decision": "approve",
        "edited": False,
        "arguments": None,
        "text": "",
    }
    assert (answered["success"], answered["error"], answered["model_calls"]) == (True, None, 1)
    assert [call["tool"] for call in answered["ext"]["tools"]] == ["deploy"]
    assert verify_row(answered)


def test_the_model_is_told_of_a_refusal(home: Path, operator: Any, shell: Shell) -> None:
    pending = operator(calls(DEPLOY)).run("Deploy it")
    second = operator("Then not.")
    response = second.resume(pending.run_id, "deny", reason="not on a Friday")
    assert response.text == "Then not." and shell.done == []
    assert sent_by(second)[0].messages[-1]["content"] == "Not run: the user refused it: not on a Friday"
    assert rows(home)[-1]["ext"]["resumed"]["decision"] == "deny"


def test_arguments_may_be_changed_and_the_model_hears_of_it(home: Path, operator: Any, shell: Shell) -> None:
    pending = operator(calls(DEPLOY)).run("Deploy it")
    with pytest.raises(ApprovalError, match="cannot be used") as caught:
        operator("No.").resume(pending.run_id, "approve", {"place": 3, "when": "now"})
    assert caught.value.reason == "arguments"
    second = operator("Deployed to the test machine.")
    second.resume(pending.run_id, "approve", {"place": "staging", "times": 2})
    assert shell.done == ["deploy staging 2"]
    call, result = sent_by(second)[0].messages[-2:]
    assert call["tool_calls"][0]["function"]["arguments"] == {"place": "production"}  # as the model wrote it
    assert result["content"] == (
        '[The user changed the arguments of this call to {"place":"staging","times":2}.]\ndeployed to staging'
    )
    row = rows(home)[-1]
    assert row["ext"]["resumed"]["arguments"] == {"place": "staging", "times": 2}
    assert row["ext"]["tools"][0]["arguments"] == {"place": "staging", "times": 2}


def test_every_call_is_decided_by_itself_and_in_order(home: Path, operator: Any, shell: Shell) -> None:
    wanted = calls(DEPLOY, ("look", {"what": "it"}), ("deploy", {"place": "mirror"}))
    first = operator(wanted).run("Deploy it twice")
    assert [call["id"] for call in first.pending_state["pending_calls"]] == ["call_0", "call_1", "call_2"]
    second = operator("never asked")
    again = second.resume(first.run_id, "approve")
    assert again.done_reason == "pending" and shell.done == ["deploy production 1", "look it"]
    assert [call["id"] for call in again.pending_state["pending_calls"]] == ["call_2"]
    assert again.run_id != first.run_id and files(home) == [f"{again.run_id}.json"]
    assert sent_by(second) == []
    third = operator("Both done.")
    assert third.resume(again.run_id, "deny").text == "Both done."
    roles = [(m["role"], m.get("tool_call_id")) for m in sent_by(third)[0].messages[-4:]]
    assert roles == [("assistant", None), ("tool", "call_0"), ("tool", "call_1"), ("tool", "call_2")]
    assert len(rows(home)) == 3


def test_the_same_call_three_times_ends_the_turn_over_all_its_runs(home: Path, operator: Any, shell: Shell) -> None:
    wanted = calls(DEPLOY)
    first = operator(wanted).run("Deploy it")
    second = operator(wanted).resume(first.run_id, "approve")
    third = operator(wanted).resume(second.run_id, "approve")
    assert third.done_reason == "loop" and len(shell.done) == 2 and files(home) == []


def test_results_that_made_way_stay_as_the_model_saw_them(home: Path, operator: Any, shell: Shell) -> None:
    def read(page: int) -> str:
        """Reads a page."""
        return f"page {page} " + "word " * 1550

    tools = {**shell.tools, "read": make_tool(read)}
    pages = [calls(("read", {"page": page})) for page in range(3)]
    first = operator(*pages, calls(DEPLOY), tools=tools)
    pending = first.run("Read, then deploy")
    before = sent_by(first)[-1].messages
    assert "made way for newer ones" in before[3]["content"] and before[5]["content"].startswith("page 1")
    second = operator("Done.", tools=tools)
    second.resume(pending.run_id, "approve")
    assert sent_by(second)[0].messages[: len(before)] == before


def test_another_model_is_sent_the_same(home: Path, operator: Any) -> None:
    first = operator(calls(DEPLOY))
    pending = first.run("Deploy it")
    second = operator("Done.")
    assert second.resume(pending.run_id, "approve", model="other").success
    (sent,), before = sent_by(second), sent_by(first)[0]
    assert sent.model == "other" == rows(home)[1]["model"]
    assert sent.messages[: len(before.messages)] == before.messages and sent.tools == before.tools


def test_tools_are_described_as_they_were(home: Path, operator: Any, shell: Shell) -> None:
    """A newer version of a package may describe its tool in other words; the turn that waits does not see them."""
    first = operator(calls(DEPLOY))
    pending = first.run("Deploy it")

    def deploy(place: str, times: int = 1, slowly: bool = False) -> str:
        """Deploys the program in some other way."""
        shell.done.append(f"newly {place} {slowly}")
        return "deployed"

    newer = {**shell.tools, "deploy": make_tool(deploy, approval=True)}
    second = operator("Done.", tools=newer)
    second.resume(pending.run_id, "approve")
    assert sent_by(second)[0].tools == sent_by(first)[0].tools
    assert shell.done == ["newly production False"]


def test_what_was_found_in_the_same_reply_is_offered_when_it_goes_on(home: Path, operator: Any, shell: Shell) -> None:
    tools = {**shell.tools, "find_capability": TOOLS["find_capability"]}
    search = ("find_capability", {"what": "look at something"})
    first = operator(calls(search, DEPLOY), tools=tools)
    pending = first.run("Deploy it", tools=["deploy", "find_capability"])
    second = operator("Done.", tools=tools)
    second.resume(pending.run_id, "approve")
    assert [sent.tool_names for one in (first, second) for sent in sent_by(one)] == [
        ["deploy", "find_capability"],
        ["deploy", "find_capability", "look"],
    ]


def test_the_call_is_made_in_the_folder_of_the_turn(home: Path, operator: Any, tmp_path: Path, shell: Shell) -> None:
    project = tmp_path / "project"
    project.mkdir()
    asking = operator(calls(("write_file", {"path": "a.txt", "text": "hello"})), tools=None, workspace=str(project))
    pending = asking.run("Write it", tools=["write_file"])
    assert not (project / "a.txt").exists()
    operator("Written.", tools=None, workspace=str(tmp_path)).resume(pending.run_id, "approve")
    assert (project / "a.txt").read_text() == "hello"


# What is refused


def test_what_was_changed_is_refused(home: Path, operator: Any, shell: Shell) -> None:
    pending = operator(calls(DEPLOY)).run("Deploy it")
    path = pending_dir(home) / f"{pending.run_id}.json"
    whole = path.read_bytes()
    changes = [
        whole.replace(b'"production"', b'"elsewhere!"'),
        whole.replace(b"You are Rune", b"You are Ruin"),
        whole[:-200],
        b"[]",
        b"",
        json.dumps(dict(sorted(json.loads(whole).items()))).encode(),  # even the order of names is part of it
        json.dumps({**json.loads(whole), "extra": 1}).encode(),
    ]
    for changed in changes:
        assert changed != whole
        path.write_bytes(changed)
        with pytest.raises(ApprovalError, match="sha256 does not match") as caught:
            operator("No.").resume(pending.run_id, "approve")
        assert (caught.value.reason, caught.value.pending_id) == ("changed", pending.run_id)
    assert shell.done == [] and len(rows(home)) == 1
    path.write_bytes(whole)
    assert operator("Yes.").resume(pending.run_id, "approve").success


def test_a_context_that_does_not_give_its_messages_is_refused(home: Path, operator: Any, shell: Shell) -> None:
    """Whoever changes the file and makes the digest anew still has the blocks and the messages to agree with each other."""
    pending = operator(calls(DEPLOY)).run("Deploy it")
    path = pending_dir(home) / f"{pending.run_id}.json"
    state = json.loads(path.read_bytes())
    state["messages"][-1]["content"] = "Delete it"
    path.write_text(json.dumps(seal(state)))
    with pytest.raises(ApprovalError, match="as it was"):
        operator("No.").resume(pending.run_id, "approve")
    assert shell.done == []


@pytest.mark.parametrize(
    "name", ["task", "messages", "context_capsule", "pending_calls", "selection", "workspace", "ext"]
)
def test_a_file_that_nobody_of_us_wrote_is_refused(home: Path, operator: Any, shell: Shell, name: str) -> None:
    pending = operator(calls(DEPLOY)).run("Deploy it")
    path = pending_dir(home) / f"{pending.run_id}.json"
    state = json.loads(path.read_bytes())
    for changed in ({**state, name: 3}, {key: value for key, value in state.items() if key != name}):
        path.write_text(json.dumps(seal(changed)))
        with pytest.raises(InvalidInput):
            operator("No.").resume(pending.run_id, "approve")
    assert shell.done == []


def test_a_file_with_a_new_digest_is_not_what_its_session_knows(home: Path, operator: Any, shell: Shell) -> None:
    session = Conversation.open("s", home)
    pending = operator(calls(DEPLOY)).run("Deploy it", session)
    path = pending_dir(home) / f"{pending.run_id}.json"
    state = json.loads(path.read_bytes())
    state["pending_calls"][0]["function"]["arguments"]["place"] = "elsewhere"
    path.write_text(json.dumps(seal(state)))
    with pytest.raises(ApprovalError, match="not as it was written"):
        operator("No.").resume(pending.run_id, "approve")
    assert shell.done == []


def test_what_has_expired_is_refused(home: Path, operator: Any, shell: Shell) -> None:
    asking = operator(calls(DEPLOY), approval_days=1e-9)
    session = Conversation.open("s", home)
    pending = asking.run("Deploy it", session)
    with pytest.raises(ApprovalError, match="expired on") as caught:
        operator("No.").resume(pending.run_id, "approve")
    assert caught.value.reason == "expired" and shell.done == []
    assert operator("Hello.").run("Hi", session).success  # it stands in nobody's way
    assert session.state_of(PENDING_APPROVAL) is None


def test_what_was_decided_is_not_decided_again(home: Path, operator: Any, shell: Shell) -> None:
    pending = operator(calls(DEPLOY)).run("Deploy it")
    path = pending_dir(home) / f"{pending.run_id}.json"
    whole = path.read_bytes()
    operator("Done.").resume(pending.run_id, "approve")
    for put_back in (False, True):  # a copy is of no use either
        if put_back:
            path.write_bytes(whole)
        with pytest.raises(ApprovalError, match="decided already: approve on") as caught:
            operator("No.").resume(pending.run_id[:8], "approve")
        assert caught.value.reason == "decided"
    assert len(shell.done) == 1


def test_of_many_that_decide_at_once_one_does(home: Path, operator: Any, shell: Shell) -> None:
    pending = operator(calls(DEPLOY)).run("Deploy it")
    operators = [operator("Done.") for _ in range(8)]
    barrier, found = threading.Barrier(8), []

    def decide(one: RuneOperator) -> None:
        barrier.wait()
        try:
            found.append(one.resume(pending.run_id, "approve").text)
        except ApprovalError as exc:
            found.append(exc.reason)

    threads = [threading.Thread(target=decide, args=(one,)) for one in operators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["Done.", *["decided"] * 7]
    assert len(shell.done) == 1 and len(rows(home)) == 2


def test_ids_are_found_by_their_beginning(home: Path, operator: Any) -> None:
    store = PendingRuns(home)
    for number in ("aa11", "aa22", "bb33"):
        store.save({"pending_version": 1, "id": number + "0" * 28, "expires": "2999-01-01T00:00:00+00:00"})
    assert store.find("BB").id.startswith("bb33")
    with pytest.raises(ApprovalError, match="2 pending approvals begin with 'aa': aa1100000000, aa2200000000"):
        store.find("aa")
    for unknown in ("cc", "", "../x", "*"):
        with pytest.raises(ApprovalError, match="there is no pending approval"):
            store.find(unknown)


def test_what_makes_no_sense_is_refused(home: Path, operator: Any, shell: Shell) -> None:
    pending = operator(calls(DEPLOY)).run("Deploy it")
    other = operator("No.")
    for arguments, match in (
        (("maybe",), "'approve' or 'deny'"),
        (("deny", {"place": "x"}), "go with an approval only"),
        (("approve", "production"), "an object"),
    ):
        with pytest.raises(InvalidInput, match=match):
            other.resume(pending.run_id, *arguments)
    with pytest.raises(ApprovalError, match="not there now: deploy"):
        operator("No.", tools={}).resume(pending.run_id, "approve")
    assert shell.done == [] and PendingRuns(home).find(pending.run_id).status == "waiting"


# Sessions


def test_a_session_with_a_waiting_turn_takes_no_other(home: Path, operator: Any) -> None:
    session = Conversation.open("s", home)
    pending = operator(calls(DEPLOY)).run("Deploy it", session)
    other = operator("Hello.")
    elsewhere = Conversation.open("s", home)
    for same in (session, elsewhere):
        with pytest.raises(ApprovalError, match=f"rune pending show {pending.run_id[:12]}") as caught:
            other.run("Something else", same)
        assert (caught.value.reason, caught.value.pending_id) == ("waiting", pending.run_id)
    assert sent_by(other) == [] and len(rows(home)) == 1
    assert other.run("Something else").success  # without a session, or in another one
    assert other.run("Something else", Conversation.open("t", home)).success
    assert forget_pending(pending.run_id[:5], home) == pending.run_id
    assert other.run("Something else", elsewhere).success
    assert other.run("And more", session).success and len(session.turns) == 2


def test_a_session_opened_before_sees_what_waits_now(home: Path, operator: Any) -> None:
    early = Conversation.open("s", home)
    operator(calls(DEPLOY)).run("Deploy it", Conversation.open("s", home))
    with pytest.raises(ApprovalError):
        operator("Hello.").run("Hi", early)


def test_a_session_is_not_compacted_while_a_turn_waits(home: Path, operator: Any) -> None:
    from rune.context.compaction import Summary, compact

    session = Conversation.open("s", home)
    for number in range(12):
        session.append(
            [{"role": "user", "content": f"{number} " * 800}, {"role": "assistant", "content": "Yes. " * 800}]
        )

    class Archive:
        def append(self, session: str, turns: Any) -> None: ...

    def try_it() -> Any:
        return compact(
            session, window=8192, summarise=lambda messages: Summary("All of it was said."), archive=Archive()
        )

    pending = operator(calls(DEPLOY), compaction=False).run("Deploy it", session)
    assert pending.done_reason == "pending"
    assert try_it().event is None
    operator("Done.", compaction=False).resume(pending.run_id, "approve", session=session)
    assert try_it().event is not None


def test_a_session_that_is_gone_or_another_one(home: Path, operator: Any) -> None:
    session = Conversation("memory")
    pending = operator(calls(DEPLOY)).run("Deploy it", session)
    with pytest.raises(InvalidInput, match="of the session 'memory', not of 'other'"):
        operator("No.").resume(pending.run_id, "approve", session=Conversation("other"))
    with pytest.raises(InvalidInput, match="must be a Conversation"):
        operator("No.").resume(pending.run_id, "approve", session="memory")
    response = operator("Done.").resume(pending.run_id, "approve")
    assert response.success and response.warnings == [
        "the session 'memory' is not there, so the turn is not added to it"
    ]


def test_it_goes_on_in_an_event_loop(home: Path, operator: Any, shell: Shell) -> None:
    async def turn() -> Any:
        pending = await operator(calls(DEPLOY)).arun("Deploy it")
        return await operator("Done.").aresume(pending.run_id, "approve")

    assert asyncio.run(turn()).text == "Done." and len(shell.done) == 1


def test_the_record_without_content_holds_no_word_of_it(home: Path, operator: Any) -> None:
    pending = operator(calls(DEPLOY), trace="content-off").run("Deploy it")
    operator("Done.", trace="content-off").resume(pending.run_id, "approve", {"place": "staging"})
    pending = operator(calls(DEPLOY), trace="content-off").run("Deploy it")
    operator("Done.", trace="content-off").resume(pending.run_id, "deny", reason="because of staging")
    kept = json.dumps(rows(home))
    assert len(rows(home)) == 4 and "staging" not in kept and "production" not in kept


def test_a_conversation_in_memory_goes_on_where_it_is_given(home: Path, operator: Any) -> None:
    session = Conversation("memory")
    pending = operator(calls(DEPLOY)).run("Deploy it", session)
    operator("Done.").resume(pending.run_id, "approve", session=session)
    assert len(session.turns) == 1 and session.state_of(PENDING_APPROVAL) is None
    assert not (home / "sessions").exists()


# What goes wrong on the way


def test_a_server_that_is_away_costs_nothing(home: Path, operator: Any, shell: Shell) -> None:
    pending = operator(calls(DEPLOY)).run("Deploy it")
    away = operator("No.", facts=ServerUnreachable("nobody is there"))
    with pytest.raises(ServerUnreachable):
        away.resume(pending.run_id, "approve")
    assert shell.done == [] and len(rows(home)) == 1
    assert operator("Done.").resume(pending.run_id, "approve").success


def test_an_answer_that_fails_after_the_call_is_asked_for_again_without_the_call(
    home: Path, operator: Any, shell: Shell
) -> None:
    session = Conversation.open("s", home)
    pending = operator(calls(DEPLOY)).run("Deploy it", session)
    failed = operator(TransportError("the GPU is on fire")).resume(pending.run_id, "approve")
    assert not failed.success and failed.error == "TransportError: the GPU is on fire"
    assert failed.pending_state is not None and failed.pending_state["waits_for"] == "answer"
    assert files(home) == [f"{failed.run_id}.json"] and len(shell.done) == 1
    for decision, arguments in (("deny", None), ("approve", {"place": "x"})):
        with pytest.raises(ApprovalError, match="only the model's answer is missing"):
            operator("No.").resume(failed.run_id, decision, arguments)
    last = operator("It is deployed.")
    assert last.resume(failed.run_id, "approve").text == "It is deployed."
    assert len(shell.done) == 1 and files(home) == []
    assert sent_by(last)[0].messages[-1]["content"] == "deployed to production"
    assert len(rows(home)) == 3 and Conversation.open("s", home).turns[0].complete


def test_a_cancel_before_the_call_leaves_it_waiting_and_after_it_ends_the_turn(
    home: Path, operator: Any, shell: Shell
) -> None:
    session = Conversation.open("s", home)
    pending = operator(calls(DEPLOY)).run("Deploy it", session)
    cancel = threading.Event()
    cancel.set()
    assert operator("No.").resume(pending.run_id, "approve", cancel=cancel).error == "cancelled"
    assert shell.done == [] and PendingRuns(home).find(pending.run_id).status == "waiting"

    def interrupt(_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        operator(interrupt).resume(pending.run_id, "approve", session=session)
    assert len(shell.done) == 1 and files(home) == []
    assert session.state_of(PENDING_APPROVAL) is None and session.turns == ()
    assert [row["error"] for row in rows(home)[1:]] == ["cancelled", "cancelled"]


def test_a_killed_decision_is_seen_and_stands_in_nobodys_way(home: Path, operator: Any, shell: Shell) -> None:
    session = Conversation.open("s", home)
    pending = operator(calls(DEPLOY)).run("Deploy it", session)
    assert pending.pending_state is not None
    PendingRuns(home).claim(pending.run_id, pending.pending_state["sha256"])  # and then its process is gone
    assert PendingRuns(home).find(pending.run_id).status == "interrupted"
    with pytest.raises(ApprovalError, match="decided already"):
        operator("No.").resume(pending.run_id, "approve")
    assert operator("Hello.").run("Hi", session).success
    forget_pending(pending.run_id, home)
    assert files(home) == []


def test_a_turn_keeps_its_context_or_does_not_go_on(home: Path, operator: Any, shell: Shell) -> None:
    """A window that is smaller by now would need another admission, which would be another context."""
    session = Conversation.open("s", home)
    for number in range(6):
        session.append([{"role": "user", "content": f"{number} " * 1000}, {"role": "assistant", "content": "Yes."}])
    pending = operator(calls(DEPLOY), facts=facts_of(16384, "tools")).run("Deploy it", session)
    assert pending.pending_state is not None and pending.pending_state["context_capsule"]["token_count"] > 2600
    small = operator("No.", facts=facts_of(2600, "tools"), server={"refuses": False})
    response = small.resume(pending.run_id, "approve")
    assert not response.success and "no longer fits the window" in str(response.error)
    assert sent_by(small) == [] and shell.done == []
    assert operator("Done.", facts=facts_of(16384, "tools")).resume(pending.run_id, "approve").success


def test_the_journal_tells_of_both(home: Path, operator: Any) -> None:
    pending = operator(calls(DEPLOY)).run("Deploy it")
    response = operator("Done.").resume(pending.run_id, "approve")
    events = [
        (row["event"], row["run_id"])
        for row in DurableLog(journal(home)).read()
        if row["event"].startswith(("approval", "run"))
    ]
    assert events == [
        ("run_started", pending.run_id),
        ("approval_pending", pending.run_id),
        ("run_finished", pending.run_id),
        ("run_started", response.run_id),
        ("approval_decided", response.run_id),
        ("run_finished", response.run_id),
    ]


def test_a_refused_prompt_does_not_run_the_call_twice(home: Path, operator: Any, shell: Shell) -> None:
    from rune.errors import PromptRefused

    pending = operator(calls(DEPLOY), facts=facts_of(32768, "tools")).run("Deploy it")
    refused = PromptRefused("too long", n_prompt_tokens=9000, n_ctx=8192)
    second = operator(refused, "Done.", facts=facts_of(32768, "tools"))
    assert second.resume(pending.run_id, "approve").success
    assert len(shell.done) == 1
    first_try, second_try = sent_by(second)
    assert first_try.messages == second_try.messages
    assert second_try.options["num_ctx"] > first_try.options["num_ctx"]


def test_reply_with_thinking_and_odd_text_comes_back_as_it_was(home: Path, operator: Any) -> None:
    odd = "\ud83d lone, \x00 nul, é, 😀, \u2028"
    asking = operator(calls(("deploy", {"place": odd, "times": 2}), text=odd, thinking="hm " + odd))
    pending = asking.run("Deploy " + odd.replace("\x00", ""))
    second = operator(reply("Done."))
    second.resume(pending.run_id, "deny", reason=odd)
    sent, again = sent_by(asking)[0].messages, sent_by(second)[0].messages
    assert again[: len(sent)] == sent
    assert again[len(sent)]["thinking"] == "hm " + odd
    assert again[len(sent)]["tool_calls"][0]["function"]["arguments"] == {"place": odd, "times": 2}

"""The acceptance invariant, along every way that a turn can take: what the record says was sent is what ``runtime.run`` received
last, is what the transport was given, and is what every digest, span and count in the row is of."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operator_helpers import facts_of, only_row
from rune import Conversation, RuneOperator, Settings, TaskState, read_traces
from rune.errors import BadReply, PromptRefused, ToolError
from rune.inference_trace import verify_row
from rune.kernels import digest, get_estimator
from rune.messages import IMAGE_TOKENS, Message, canonical_json, image_count, measured_text
from rune.runtime.fallback_prompt import as_text
from rune.runtime.local_tool_runtime import LocalToolRuntime
from rune.runtime.num_ctx import sticky
from rune.runtime.tool_executor import make_tool
from rune.transports.discovery import ModelFacts
from scripted import ScriptedTransport, calls


class Tiered(ScriptedTransport):
    windows: dict[str, int]
    can: dict[str, str]

    def fetch_facts(self, model: str) -> ModelFacts:
        return facts_of(self.windows[model], self.can[model])


def look(number: int = 0, size: int = 4) -> str:
    """Looks."""
    return f"seen {number} " + "word " * (size // 5)


def fail(number: int = 0) -> str:
    """Fails."""
    raise ToolError(f"no such thing {number}")


def deploy(place: str = "production") -> str:
    """Deploys."""
    return f"deployed to {place}"


TOOLS = {"look": make_tool(look), "fail": make_tool(fail), "deploy": make_tool(deploy, approval=True)}
TIERS = {"small": "tiny:1b", "large": "big:70b"}


def refusal(prompt: int | None = 9000, window: int | None = 8192) -> PromptRefused:
    return PromptRefused("too long", n_prompt_tokens=prompt, n_ctx=window, status=400)


class Way(NamedTuple):
    """One way of a turn: the script, the task, and what is set; ``runs`` is how often the runtime is run."""

    script: list[Any]
    task: Any = "Hello there!"
    windows: tuple[int, int] = (131_072, 262_144)
    history: tuple[int, int, str] = (3, 40, "abcd")
    runs: int = 1
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    holds: Callable[[dict[str, Any]], bool] = lambda row: True
    can: tuple[str, str] = ("tools", "tools")


def attempts(*outcomes: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: [attempt["outcome"] for attempt in row["ext"]["attempts"]] == list(outcomes)


def escalated(why: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: [step["why"] for step in row["ext"]["routing"]["escalations"]] == [why]


def filled_but_for_half_a_note(operator: RuneOperator, session: Conversation) -> str:
    """A task that fits beside the whole history, and does not with its note."""
    task = "Delete the old backups."
    capsule, trace = operator.plan(task, session)
    note = trace["ext"]["safety"]["tokens_after"] - trace["ext"]["safety"]["tokens_before"]
    return task + "." * 4 * (capsule.budget - capsule.token_count + note // 2)


def in_words(name: str, **arguments: Any) -> str:
    """A call as a model without tools of its own makes it."""
    return f"```tool_call\n{json.dumps({'name': name, 'arguments': arguments})}\n```"


def told(row: dict[str, Any]) -> bool:
    """Whether the model that ended the run was told of its tools in words."""
    return row["ext"]["tool_mode"] == "text" and row["per_block_tokens"]["fallback_tool_prompt"] > 0


LONG_HISTORY = (8, 400, "7391")
WAYS = {
    "a plain turn": Way(["ok"], holds=lambda row: row["ext"]["history"]["admitted"] == 3),
    "the cache layout": Way(["ok"], settings={"layout": "cache"}),
    "images": Way(["ok"], TaskState("What is it?", images=["aGk=", "aGk="])),
    "odd text": Way(["ok"], "a \udcb2 lone surrogate, \x00 and 🙂"),
    "a tool loop": Way([calls(("look", {"number": 1})), calls(("look", {"number": 2}), ("fail", {})), "ok"]),
    "a tool loop whose results make way": Way(
        [*(calls(("look", {"number": n, "size": 7900})) for n in range(6)), "ok"],
        settings={"num_ctx_max": 8192},
        holds=lambda row: len(row["ext"]["tool_loop"]["dropped"]) > 0,
    ),
    "the safety note": Way(
        ["ok"], "Delete the old backups", holds=lambda row: row["ext"]["safety"]["rules"] == ["delete"]
    ),
    "the safety note makes room": Way(
        ["ok"],
        filled_but_for_half_a_note,
        windows=(8192, 8192),
        history=(8, 600, "abcd"),
        holds=lambda row: row["ext"]["safety"]["made_room"] and row["ext"]["history"]["admitted"] < 8,
    ),
    "the safety note in a tool loop": Way([calls(("look", {})), "ok"], "Show me the passwords"),
    "a climb after a refusal": Way([refusal(), "ok"], runs=2, holds=attempts("refused", "answered")),
    "a climb in a tool loop": Way(
        [calls(("look", {})), refusal(), "ok"], runs=2, holds=lambda row: row["ext"]["attempts"][1]["first_call"] == 1
    ),
    "a readmission by script": Way(
        [refusal(), "ok"],
        windows=(8192, 8192),
        history=LONG_HISTORY,
        runs=2,
        holds=lambda row: row["ext"]["estimator"].startswith("script"),
    ),
    "a readmission with a safety note": Way(
        [refusal(), "ok"],
        "Delete the old backups",
        (8192, 8192),
        LONG_HISTORY,
        2,
        holds=attempts("refused", "answered"),
    ),
    "a readmission under the ceiling": Way(
        ["ok"], history=(8, 4000, "abcd"), settings={"num_ctx_max": 16384}, holds=lambda row: "readmitted" in row["ext"]
    ),
    "a step that cannot be loaded": Way(
        [refusal(), BadReply("more memory", status=500), "ok"],
        history=(8, 300, "see "),
        runs=3,
        holds=attempts("refused", "failed", "answered"),
    ),
    "an escalation on overflow": Way(
        ["ok"], "Hello there! " + "word " * 5600, (8192, 32768), settings={"tiers": TIERS}, holds=escalated("overflow")
    ),
    "an escalation on a refusal": Way(
        [refusal(), refusal(), "ok"],
        "Hello there!",
        (8192, 32768),
        LONG_HISTORY,
        3,
        {"tiers": TIERS},
        escalated("refused"),
    ),
    "an escalation with a safety note": Way(
        [refusal(), "ok"],
        "Delete everything.",
        (8192, 32768),
        runs=2,
        settings={"tiers": TIERS},
        holds=escalated("refused"),
    ),
    "an escalation of a tool loop": Way(
        [calls(("look", {"size": 7900})), "ok"],
        windows=(3000, 32768),
        history=(0, 0, ""),
        runs=2,
        settings={"tiers": TIERS},
        holds=escalated("overflow"),
    ),
    "an escalation on failing tools": Way(
        [*(calls(("fail", {"number": n})) for n in range(3)), "ok"],
        runs=2,
        settings={"tiers": TIERS},
        holds=escalated("tool_failures"),
    ),
    "an escalation that comes to nothing": Way(
        [*(calls(("fail", {"number": n})) for n in range(3)), BadReply("broken", status=500), "ok"],
        runs=3,
        settings={"tiers": TIERS},
        holds=lambda row: row["model"] == "tiny:1b",
    ),
    "the fallback tool prompt": Way(["ok"], holds=told, can=("completion", "completion")),
    "a tool loop in words": Way(
        [in_words("look", number=1), in_words("fail"), "ok"],
        "Delete everything.",
        holds=told,
        can=("completion", "completion"),
    ),
    "a climb with the fallback tool prompt": Way(
        [in_words("look"), refusal(), "ok"], runs=2, holds=told, can=("completion", "completion")
    ),
    "a fallback tool prompt that does not fit": Way(
        ["no tools"], windows=(2400, 2400), holds=lambda row: "tools_do_not_fit" in row["ext"]["warnings"], can=("", "")
    ),
    "an escalation from words to schemas": Way(
        [*(in_words("fail", number=n) for n in range(3)), calls(("look", {})), "ok"],
        runs=2,
        settings={"tiers": TIERS},
        holds=escalated("tool_failures"),
        can=("completion", "tools"),
    ),
    "an escalation from schemas to words": Way(
        [*(calls(("fail", {"number": n})) for n in range(3)), in_words("look"), "ok"],
        runs=2,
        settings={"tiers": TIERS},
        holds=lambda row: told(row) and escalated("tool_failures")(row),
        can=("tools", "completion"),
    ),
    "a run that fails": Way([BadReply("broken", status=400)], holds=lambda row: row["success"] is False),
    "a run that is refused for good": Way(
        [refusal()],
        windows=(8192, 8192),
        history=(0, 0, ""),
        holds=lambda row: row["ext"]["verdict"]["kind"] == "refused",
    ),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    sticky.clear()
    yield
    sticky.clear()


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[list[Message]]:
    """What every ``LocalToolRuntime.run`` of the test was given, in order; the real one runs."""
    found: list[list[Message]] = []
    real = LocalToolRuntime.run

    def run(self: LocalToolRuntime, messages: Any, **options: Any) -> Any:
        found.append(copy.deepcopy(list(messages)))
        return real(self, messages, **options)

    monkeypatch.setattr(LocalToolRuntime, "run", run)
    return found


def session_of(turns: int, size: int, letter: str) -> Conversation:
    session = Conversation("s")
    for _ in range(turns):
        session.append([{"role": "user", "content": "abcd"}, {"role": "assistant", "content": letter * size}])
    return session


def check_row(row: dict[str, Any], received: list[Message]) -> None:
    """All that a row says of what was sent, held against what was received."""
    assert verify_row(row)
    messages = row["capsule_messages"]
    assert messages == received
    hashes = row["capsule_content_hashes"]
    system = messages[0]["content"]
    checked = {"tool_schemas"} & set(hashes)
    if "fallback_tool_prompt" in hashes:
        assert digest(row["ext"]["fallback_tool_prompt"]["text"]) == hashes["fallback_tool_prompt"]
        checked.add("fallback_tool_prompt")
    for name, (start, end) in row["ext"]["spans"].items():
        assert digest(system[start:end]) == hashes[name], name
        checked.add(name)
    for name, (start, end) in row["ext"]["user_spans"].items():
        assert digest(messages[-1]["content"][start:end]) == hashes[name], name
        checked.add(name)
    if "history" in hashes:
        assert digest(canonical_json(messages[1:-1])) == hashes["history"]
        checked.add("history")
    assert checked == set(hashes)
    estimator = get_estimator("script" if row["ext"]["estimator"].startswith("script") else "chars4", 49152)
    assert estimator.key == row["ext"]["estimator"]
    # Blocks are measured on their own, joined by blank lines that are not counted.
    pieces = [system[a:b] for a, b in row["ext"]["spans"].values()]
    pieces += [messages[-1]["content"][a:b] for a, b in row["ext"]["user_spans"].values()]
    pieces += [measured_text(message) for message in messages[1:-1]]
    counted = sum(estimator.many(pieces)) + sum(IMAGE_TOKENS * image_count(message) for message in messages)
    tools = sum(row["per_block_tokens"].get(name, 0) for name in ("tool_schemas", "fallback_tool_prompt"))
    assert row["capsule_token_count"] == counted + tools
    assert row["capsule_token_count"] <= row["input_budget"]
    changed = sum(c["tokens"] - c["tokens_before"] for c in row["ext"].get("changes", ()))
    assert (
        row["prompt_tokens_estimated"] == row["capsule_token_count"] - changed == sum(row["per_block_tokens"].values())
    )


def operator_of(home: Path, way: Way, script: list[Any]) -> tuple[RuneOperator, Tiered]:
    transport = Tiered(script, repeat=True)
    transport.windows = {"scripted": way.windows[0], "tiny:1b": way.windows[0], "big:70b": way.windows[1]}
    transport.can = {"scripted": way.can[0], "tiny:1b": way.can[0], "big:70b": way.can[1]}
    settings = Settings.load(home, env={}, workspace=str(home.parent), **way.settings)
    return RuneOperator(
        transport, None if "tiers" in way.settings else "scripted", home, settings, tools=TOOLS
    ), transport


@pytest.mark.parametrize("name", WAYS)
def test_what_is_recorded_is_what_was_received_and_what_was_sent(
    name: str, home: Path, received: list[list[Message]]
) -> None:
    way = WAYS[name]
    operator, transport = operator_of(home, way, way.script)
    session = session_of(*way.history)
    response = operator.run(way.task(operator, session) if callable(way.task) else way.task, session)
    row = only_row(home)
    assert way.holds(row), row["ext"]
    assert row == response.trace
    assert len(received) == way.runs
    check_row(row, received[-1])
    # Every call of the last attempt was sent what was received, and behind it what the run itself had added by then.
    last = row["ext"]["attempts"][-1]
    count = len(row["ext"]["calls"]) - last["first_call"] + (last["outcome"] != "answered")
    wire = received[-1]
    if row["ext"]["tool_mode"] == "text":
        wire = as_text(wire, row["ext"].get("fallback_tool_prompt", {}).get("text", ""))
    own = [sent.messages[len(wire) :] for sent in transport.sent[-count:]]
    for sent in transport.sent[-count:]:
        assert sent.messages[: len(wire)] == wire
        assert sent.model == row["model"]
    assert [message["role"] for message in own[0]].count("assistant") == last["first_call"]


DEPLOY = calls(("deploy", {}))
PENDING = {
    "a plain turn": Way([calls(("look", {})), DEPLOY]),
    "the safety note": Way([DEPLOY], "Deploy it to production, then delete the old backups"),
    "a readmission by script": Way([refusal(), DEPLOY], windows=(8192, 8192), history=LONG_HISTORY),
    "an escalation": Way([refusal(), DEPLOY], windows=(8192, 32768), settings={"tiers": TIERS}),
    "an escalation on failing tools": Way(
        [*(calls(("fail", {"number": n})) for n in range(3)), DEPLOY], settings={"tiers": TIERS}
    ),
}


@pytest.mark.parametrize("decision", ["approve", "deny"])
@pytest.mark.parametrize("name", PENDING)
def test_a_turn_that_waited_for_an_approval_goes_on_with_the_very_same_context(
    name: str, decision: Any, home: Path, received: list[list[Message]]
) -> None:
    way = PENDING[name]
    operator, before = operator_of(home, way, way.script)
    pending = operator.run(way.task, session_of(*way.history))
    assert pending.pending_state is not None, pending.error
    check_row(pending.trace, received[-1])
    assert pending.pending_state["messages"] == received[-1]
    operator.close()
    sticky.clear()
    operator, after = operator_of(home, way, ["Done."])
    response = operator.resume(pending.pending_state["id"], decision)
    assert response.success and response.trace is not None
    check_row(response.trace, received[-1])
    assert received[-1] == received[-2]
    assert response.trace["capsule_content_hashes"] == pending.trace["capsule_content_hashes"]
    (sent,) = after.sent
    assert sent.model == before.sent[-1].model == response.trace["model"]
    assert sent.messages[: len(before.sent[-1].messages)] == before.sent[-1].messages
    assert [message["role"] for message in sent.messages[len(before.sent[-1].messages) :]] == ["assistant", "tool"]
    assert response.trace["routing_mode"] == pending.trace["routing_mode"]


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.script[-1] == "ok"])
def test_along_every_way_a_turn_can_end_in_a_question_and_go_on(
    name: str, home: Path, received: list[list[Message]]
) -> None:
    way = WAYS[name]
    asking, before = operator_of(home, way, [*way.script[:-1], DEPLOY])
    session = session_of(*way.history)
    pending = asking.run(way.task(asking, session) if callable(way.task) else way.task, session)
    assert pending.done_reason == "pending", pending.error
    sticky.clear()  # a new process knows nothing
    going_on, after = operator_of(home, way, ["Done."])
    assert going_on.resume(pending.run_id, "approve", session=session).text == "Done."
    asked, answered = read_traces(home)
    check_row(asked, received[-2])
    check_row(answered, received[-1])
    assert received[-2] == received[-1] == pending.pending_state["messages"]
    (sent,), last = after.sent, before.sent[-1]
    assert sent.messages[: len(last.messages)] == last.messages
    assert (sent.tools, sent.model) == (last.tools, last.model)
    assert sent.options["num_ctx"] == last.options["num_ctx"]
    for field in ("routing_reason", "capability_reason", "prompt_tokens_estimated", "input_budget"):
        assert asked[field] == answered[field], field
    assert asked["ext"].get("safety") == answered["ext"].get("safety")

"""One authority: nothing but the broker's capsule can put text into what a model is sent. Read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import rune

SOURCE = Path(rune.__file__).parent

MAKES_MESSAGES = {
    "context/capsule.py": "the broker's own product",
    "messages.py": "brings what others wrote into one form",
    "runtime/fallback_prompt.py": "the runtime's own prompt for models without tools, measured in the ledger as one block",
    "runtime/tool_executor.py": "a tool's result, inside the run's own loop and measured by its room rule",
    "transports/base.py": "the model's own reply",
    "transports/ollama_chat.py": "the model's own reply",
    "transports/openai_reply.py": "the model's own reply",
    "transports/wire.py": "the same messages in the server's form",
    "rune_operator.py": "what was asked and answered, kept for the next turn's history",
    "context/summary.py": "what the summariser is asked, and the summary as a block of the history",
    "context/sessions.py": "a session written out for its user",
    "canary_context_broker.py": "made-up conversations to check with",
    "canary_p0_07.py": "made-up rows to check with",
}
CALLS_A_MODEL = {"runtime/local_tool_runtime.py", "operator_compaction.py"}
RUNS_A_CAPSULE = {"operator_attempts.py"}
MAKES_BLOCKS = {"contributors.py", "context/collect.py", "canary_context_broker.py"}


def trees() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def called(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


def makes_a_message(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            if "role" in keys and "content" in keys:
                return True
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            key = node.slice
            if isinstance(key, ast.Constant) and key.value == "role":
                return True
    return False


def test_only_the_named_modules_make_messages() -> None:
    assert {name for name, tree in trees() if makes_a_message(tree)} == set(MAKES_MESSAGES)


def test_only_the_runtime_and_the_summariser_call_a_model() -> None:
    found = {name for name, tree in trees() if any(call in ("chat", "achat") for call, _ in called(tree))}
    assert found == CALLS_A_MODEL


def test_what_runs_is_what_the_capsule_says_and_nothing_else() -> None:
    """Every call of a runtime's ``run`` is given ``capsule.to_messages()`` itself."""
    found = set()
    for name, tree in trees():
        for call, node in called(tree):
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            if call == "run" and ast.unparse(owner or ast.Constant("")).endswith("runtime"):
                found.add(name)
                assert ast.unparse(node.args[0]).endswith(".to_messages()"), f"{name}: {ast.unparse(node)}"
    assert found == RUNS_A_CAPSULE


def test_blocks_are_made_by_contributors_alone() -> None:
    found = {name for name, tree in trees() if any(call == "ContributionBlock" for call, _ in called(tree))}
    assert found == MAKES_BLOCKS

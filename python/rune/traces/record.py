"""The record of one run: built from what the broker and the transport counted, never measured again.

Pure functions over plain values. ``ext.row_digest`` covers the whole row, so that a change to it is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rune.errors import InvalidInput
from rune.storage.rows import Row, decode_row, encode_row
from rune.traces.prices import Price, cost_of
from rune.traces.schema import EXT_VERSION, SCHEMA_VERSION, defaults

__all__ = ["ERROR_MAX", "build_record", "row_digest", "verify_row", "without_content"]

ERROR_MAX = 300

_MEMORY_BLOCK_NAMES = ("memory", "persona_memories", "consolidated")
_CONTENT_KEYS = frozenset(
    "arguments content images messages partial_text prompt result summary task text thinking".split()
)


def build_record(
    *,
    broker_trace: Mapping[str, Any] | None,
    usage: Any = None,
    provider: str = "",
    model: str = "",
    task_id: str | None = "",
    channel: str = "",
    latency_ms: float = 0.0,
    tools_exposed: Iterable[str] = (),
    selected_tools: Iterable[str] = (),
    degraded: Iterable[str] = (),
    success: bool = True,
    error: str | None = None,
    routing_reason: str = "",
    routing_mode: str = "",
    task_family: str = "",
    capability_reason: str = "",
    find_capability_calls: int = 0,
    capsule_messages: Iterable[Mapping[str, Any]] | None = None,
    capsule_content_hashes: Mapping[str, str] | None = None,
    capsule_token_count: int = 0,
    memory_block_names: Collection[str] = _MEMORY_BLOCK_NAMES,
    price: Price | None = None,
    remote: bool = False,
    ext: Mapping[str, Any] | None = None,
) -> Row:
    """The row of a run, exactly as it will be read back: version 4's fields in their order, then ``ext``.

    ``broker_trace``: the trace of the assembly that was answered (None where none was made); window, budget, blocks, estimate
    and memory tokens come from it, and its own ``ext`` and compaction events go to the row's ``ext``, under what ``ext`` gives.
    ``usage``: an object or mapping with calls, prompt_tokens, output_tokens and total_duration_ns of the run. ``latency_ms``:
    wall clock around the whole run. ``remote``: the prompt left the machine, so that the cost is never called local.

    Raises InvalidInput for values that are not JSON.
    """
    trace: Mapping[str, Any] = broker_trace or {}
    blocks = trace.get("blocks") or ()
    admitted = [block for block in blocks if block["admitted"]]
    calls, prompt_tokens, output_tokens = (_count(usage, name) for name in ("calls", "prompt_tokens", "output_tokens"))
    cost_usd, cost_basis = cost_of(
        price, calls=calls, prompt_tokens=prompt_tokens, output_tokens=output_tokens, remote=remote
    )
    row = {
        **defaults(),
        "schema_version": SCHEMA_VERSION,
        "provider": provider,
        "model": model or trace.get("model_id", ""),
        "task_id": task_id or "",
        "channel": channel,
        "resolved_context_window": trace.get("window", 0),
        "input_budget": trace.get("budget", 0),
        "model_calls": calls,
        "prompt_tokens_estimated": trace.get("admitted_total", 0),
        "prompt_tokens_served": prompt_tokens,
        "output_tokens": output_tokens,
        "latency_ms": round(float(latency_ms), 3),
        "model_time_ms": _count(usage, "total_duration_ns") / 1e6,
        "per_block_tokens": {block["name"]: block["tokens"] for block in admitted},
        "dropped_blocks": [{"name": b["name"], "tokens": b["tokens"]} for b in blocks if not b["admitted"]],
        "tools_exposed": list(tools_exposed),
        "memories_exposed": [b["name"] for b in admitted if b["name"] in memory_block_names and b["tokens"] > 0],
        "memory_tokens": trace.get("memory_tokens", 0),
        "degraded": list(degraded),
        "cost_usd": cost_usd,
        "cost_basis": cost_basis,
        "success": bool(success),
        "error": error[:ERROR_MAX] if error else None,
        "routing_reason": routing_reason,
        "routing_mode": routing_mode,
        "task_family": task_family,
        "selected_tools": list(selected_tools),
        "capability_reason": capability_reason,
        "find_capability_calls": find_capability_calls,
        "capsule_messages": None if capsule_messages is None else list(capsule_messages),
        "capsule_content_hashes": dict(capsule_content_hashes or {}),
        "capsule_token_count": capsule_token_count,
        "ext": {**_ext(trace, price), **(ext or {})},
    }
    return _sealed(row)


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
    return int(value or 0)


def _ext(trace: Mapping[str, Any], price: Price | None) -> Row:
    ext: Row = {"ext_version": EXT_VERSION, **trace.get("ext", {})}
    if trace.get("compaction"):
        ext["compaction"] = trace["compaction"]
    if price is not None:
        ext["price"] = {"model": price.model, "input": price.input, "output": price.output, "source": price.source}
    return ext


def _sealed(row: Mapping[str, Any]) -> Row:
    """The row as a reader will have it, with its digest. Going through JSON also cuts every tie to the caller's objects."""
    found = decode_row(encode_row(row))
    if found is None:
        raise InvalidInput("the record of the run cannot be read back from JSON: it is nested too deeply")
    found["ext"]["row_digest"] = row_digest(found)
    return found


def row_digest(row: Mapping[str, Any]) -> str:
    """sha256 (hex) of the row's canonical JSON: keys sorted, no spaces, ASCII escapes, ``ext.row_digest`` left out."""
    ext = row.get("ext")
    if isinstance(ext, Mapping):
        row = {**row, "ext": {name: value for name, value in ext.items() if name != "row_digest"}}
    canonical = json.dumps(row, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def verify_row(row: Mapping[str, Any]) -> bool | None:
    """Whether a row is as it was written; None when it carries no digest (rows of others, and of older versions)."""
    ext = row.get("ext")
    written = ext.get("row_digest") if isinstance(ext, Mapping) else None
    return None if written is None else bool(written == row_digest(row))


def without_content(row: Mapping[str, Any]) -> Row:
    """The row with ``capsule_messages`` null and every text of the conversation in ``ext`` null; counts and hashes stay."""
    ext = row.get("ext")
    kept = _emptied(ext) if isinstance(ext, Mapping) else {}
    return _sealed({**row, "capsule_messages": None, "ext": {**kept, "content": "off"}})


def _emptied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: None if k in _CONTENT_KEYS and not _is_count(v) else _emptied(v) for k, v in value.items()}
    return [_emptied(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _is_count(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float))

"""What ``/v1/models`` says about a model, on vLLM, llama-server, LM Studio and gateways. No IO."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from rune.transports.base import ModelListing
from rune.transports.discovery import ModelFacts
from rune.transports.host import ServerAddress

__all__ = [
    "count_of",
    "facts_from_entry",
    "is_public",
    "listing_from_entry",
    "model_entries",
    "parameter_size",
    "window_of",
]


def model_entries(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of the list that have a name."""
    data = answer.get("data")
    entries = data if isinstance(data, list) else []
    return [entry for entry in entries if isinstance(entry, Mapping) and isinstance(entry.get("id"), str)]


def listing_from_entry(entry: Mapping[str, Any]) -> ModelListing:
    """One model of the list; llama-server adds a ``meta`` object with sizes."""
    meta = _meta(entry)
    return ModelListing(
        str(entry["id"]),
        size_bytes=count_of(meta.get("size")),
        parameter_size=parameter_size(count_of(meta.get("n_params"))),
        quantization=str(meta.get("ftype") or ""),
        # Servers that list embedding models among the others name them so; more is not told.
        chat=False if "embed" in str(entry["id"]).lower() else None,
    )


def facts_from_entry(model: str, entries: Iterable[Mapping[str, Any]], context_length: int | None) -> ModelFacts:
    """The facts of the list about a model. The window is the one told, lowered by ``context_length``; else that; else None."""
    entry = next((e for e in entries if e["id"] == model), {})
    meta = _meta(entry)
    told = window_of(entry.get("max_model_len")) or window_of(meta.get("n_ctx"))
    window = min(told, context_length) if told and context_length else told or context_length
    return ModelFacts(
        model=model,
        trained_window=window,
        vocab_size=count_of(meta.get("n_vocab")),
        parameter_size=parameter_size(count_of(meta.get("n_params"))),
        quantization=str(meta.get("ftype") or ""),
        source="/v1/models" if told else "context_length" if context_length else "/v1/models",
    )


def _meta(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = entry.get("meta")
    return meta if isinstance(meta, Mapping) else {}


def count_of(value: Any) -> int | None:
    """A whole number from 1 to 2^63-1, or None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
        return None
    return value


def window_of(value: Any) -> int | None:
    """A window in tokens, 1 to 2^31-1, or None for anything else."""
    count = count_of(value)
    return count if count is not None and count < 2**31 else None


def parameter_size(count: int | None) -> str:
    """Parameters as models are called by them: 134515008 is "135M", 7240000000 "7.2B"; "" when unknown."""
    if count is None:
        return ""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"


def is_public(address: ServerAddress) -> str:
    """The host when it lies outside this machine and its network, so that prompts leave them, else ""."""
    host = urlsplit(address.url).hostname or ""
    if address.loopback:
        return ""
    try:
        return host if ipaddress.ip_address(host).is_global else ""
    except ValueError:
        return "" if "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa")) else host

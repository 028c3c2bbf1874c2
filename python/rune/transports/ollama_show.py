"""What ``/api/show``, ``/api/tags`` and ``/api/ps`` say about models. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rune.transports.base import ModelListing
from rune.transports.discovery import ModelFacts

__all__ = ["facts_from_show", "kv_bytes_per_token", "listing_from_tag", "same_model", "usable_window", "window_in_ps"]

_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\S+)", re.MULTILINE)
KV_BYTES_PER_VALUE = 2  # f16, the server's default


def usable_window(value: Any) -> int | None:
    """A window as a number of tokens: integers and integral floats from 1 to 2^31-1; anything else is None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if 1 <= value <= 2**31 - 1 else None


def facts_from_show(model: str, show: Mapping[str, Any]) -> ModelFacts:
    """The facts in an answer of ``/api/show``; whatever is missing or unusable is None or ""."""
    info = _mapping(show.get("model_info"))
    details = _mapping(show.get("details"))
    capabilities = show.get("capabilities")
    modelfile = _NUM_CTX.search(show["parameters"]) if isinstance(show.get("parameters"), str) else None
    remote = str(show.get("remote_host") or show.get("remote_model") or "")
    tokens = info.get("tokenizer.ggml.tokens")
    vocab_size = usable_window(_of_architecture(info, "vocab_size"))
    if vocab_size is None and isinstance(tokens, list) and tokens:
        vocab_size = len(tokens)
    template = show.get("template")
    return ModelFacts(
        model=model,
        trained_window=usable_window(_of_architecture(info, "context_length")),
        modelfile_num_ctx=_integer(modelfile[1]) if modelfile else None,
        capabilities=frozenset(str(c) for c in capabilities) if isinstance(capabilities, list) else None,
        vocab_size=vocab_size,
        kv_bytes_per_token=kv_bytes_per_token(info),
        family=str(details.get("family") or ""),
        parameter_size=str(details.get("parameter_size") or ""),
        quantization=str(details.get("quantization_level") or ""),
        remote=remote,
        template=template if isinstance(template, str) else "",
        add_bos=_boolean(info.get("tokenizer.ggml.add_bos_token")),
        tokenizer_pre=str(info.get("tokenizer.ggml.pre") or ""),
        source="/api/show",
        added_bytes=_added_bytes(show),
    )


def _of_architecture(info: Mapping[Any, Any], name: str) -> Any:
    """A value under the model's architecture, else under the only key with that ending.

    Projector and draft data carry the same endings under other prefixes, so several endings are no answer.
    """
    architecture = info.get("general.architecture")
    key = f"{architecture}.{name}"
    if key in info:
        return info[key]
    found = [k for k in info if isinstance(k, str) and k.endswith(f".{name}")]
    return info[found[0]] if len(found) == 1 else None


def kv_bytes_per_token(info: Mapping[str, Any]) -> int | None:
    """Bytes that one token takes in the KV cache (f16), from ``model_info``; None when the numbers are not there.

    Models whose layers differ give ``head_count_kv`` as a list. Sliding windows and recurrent layers need less than this.
    """
    heads = _of_architecture(info, "attention.head_count")
    kv_heads = _of_architecture(info, "attention.head_count_kv")
    blocks = usable_window(_of_architecture(info, "block_count"))
    if kv_heads is None:
        kv_heads = heads
    most_heads = max((h for h in heads if isinstance(h, int)), default=0) if isinstance(heads, list) else heads
    embedding = usable_window(_of_architecture(info, "embedding_length"))
    per_head = embedding // most_heads if embedding and usable_window(most_heads) else None
    key = usable_window(_of_architecture(info, "attention.key_length")) or per_head
    value = usable_window(_of_architecture(info, "attention.value_length")) or per_head
    if key is None or value is None:
        return None
    if isinstance(kv_heads, list) and kv_heads and all(isinstance(h, int) and h >= 0 for h in kv_heads):
        total = sum(kv_heads)
    elif blocks and usable_window(kv_heads):
        total = blocks * int(kv_heads)
    else:
        return None
    return total * (key + value) * KV_BYTES_PER_VALUE or None


def _added_bytes(show: Mapping[str, Any]) -> int | None:
    """UTF-8 bytes of what the server may put beside the messages: its template's own text, and the Modelfile's texts."""
    template = show.get("template")
    if not isinstance(template, str) or not template:
        return None
    total = len(template.encode("utf-8", "replace"))
    system = show.get("system")
    total += len(system.encode("utf-8", "replace")) if isinstance(system, str) else 0
    for message in show.get("messages") or ():
        content = message.get("content") if isinstance(message, Mapping) else None
        total += 16 + (len(content.encode("utf-8", "replace")) if isinstance(content, str) else 0)
    return total


def listing_from_tag(entry: Mapping[str, Any]) -> ModelListing:
    """One model of ``/api/tags``; ``chat`` is None where the server does not list capabilities yet."""
    details = _mapping(entry.get("details"))
    capabilities = entry.get("capabilities")
    size = entry.get("size")
    return ModelListing(
        name=str(entry.get("name") or entry.get("model") or ""),
        size_bytes=size if isinstance(size, int) and not isinstance(size, bool) else None,
        family=str(details.get("family") or ""),
        parameter_size=str(details.get("parameter_size") or ""),
        quantization=str(details.get("quantization_level") or ""),
        chat="completion" in capabilities if isinstance(capabilities, list) else None,
        remote=str(entry.get("remote_host") or entry.get("remote_model") or ""),
    )


def same_model(one: str, other: str) -> bool:
    """Whether two names mean the same tag: ``latest`` is the tag of a name without one."""
    return _tagged(one) == _tagged(other)


def _tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def window_in_ps(answer: Mapping[str, Any], model: str) -> int | None:
    """The loaded window of a model by ``/api/ps``; None when it is not listed (unknown, not unloaded) or not given."""
    models = answer.get("models")
    for entry in models if isinstance(models, list) else ():
        if not isinstance(entry, Mapping):
            continue
        names = (entry.get("name"), entry.get("model"))
        if any(isinstance(name, str) and same_model(name, model) for name in names):
            return usable_window(entry.get("context_length"))
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(text: str) -> int | None:
    try:
        return usable_window(float(text))
    except (ValueError, OverflowError):
        return None

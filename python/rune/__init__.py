"""Rune decides what enters a local model's context window, cuts nothing in silence, and keeps one record per run.

Names are imported on first use (PEP 562): ``import rune`` loads no HTTP client and touches no network and no file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rune.context.capsule import AttentionCapsule, ContributionBlock
    from rune.context.conversation import Conversation
    from rune.context.trimming import trim_messages
    from rune.context_broker import (
        COMPACTION_THRESHOLD,
        MEMORY_BLOCK_NAMES,
        ContextBroker,
        current_assembly,
        memory_disabled,
    )
    from rune.errors import (
        ApprovalError,
        BackendError,
        BadReply,
        ContextOverflowError,
        InvalidInput,
        ModelNotFound,
        PromptRefused,
        RemoteModelRefused,
        RuneError,
        ServerBusy,
        ServerUnreachable,
        StorageError,
        StreamCut,
        ToolError,
        TransportError,
    )
    from rune.inference_trace import price_for, read_traces
    from rune.kernels import BACKEND, get_estimator
    from rune.rune_operator import OperatorResponse, RuneOperator
    from rune.runtime.local_tool_runtime import LocalToolRuntime
    from rune.runtime.task_state import TaskState
    from rune.runtime.tool_executor import TOOLS, Tool, ToolContext, tool
    from rune.settings import Settings
    from rune.subsystem_health import record_failure
    from rune.transports.discovery import context_length
    from rune.transports.llama_cpp import LlamaCppChatTransport
    from rune.transports.ollama import OllamaChatTransport
    from rune.transports.openai_compat import OpenAIChatTransport

__version__ = "0.1.0"

__all__ = [
    "BACKEND",
    "COMPACTION_THRESHOLD",
    "MEMORY_BLOCK_NAMES",
    "TOOLS",
    "ApprovalError",
    "AttentionCapsule",
    "BackendError",
    "BadReply",
    "ContextBroker",
    "ContextOverflowError",
    "ContributionBlock",
    "Conversation",
    "InvalidInput",
    "LlamaCppChatTransport",
    "LocalToolRuntime",
    "ModelNotFound",
    "OllamaChatTransport",
    "OpenAIChatTransport",
    "OperatorResponse",
    "PromptRefused",
    "RemoteModelRefused",
    "RuneError",
    "RuneOperator",
    "ServerBusy",
    "ServerUnreachable",
    "Settings",
    "StorageError",
    "StreamCut",
    "TaskState",
    "Tool",
    "ToolContext",
    "ToolError",
    "TransportError",
    "__version__",
    "context_length",
    "current_assembly",
    "get_estimator",
    "memory_disabled",
    "price_for",
    "read_traces",
    "record_failure",
    "tool",
    "trim_messages",
]

_HOMES = {
    "rune.context.capsule": ("AttentionCapsule", "ContributionBlock"),
    "rune.context.conversation": ("Conversation",),
    "rune.context.trimming": ("trim_messages",),
    "rune.context_broker": (
        "COMPACTION_THRESHOLD",
        "MEMORY_BLOCK_NAMES",
        "ContextBroker",
        "current_assembly",
        "memory_disabled",
    ),
    "rune.errors": (
        "ApprovalError",
        "BackendError",
        "BadReply",
        "ContextOverflowError",
        "InvalidInput",
        "ModelNotFound",
        "PromptRefused",
        "RemoteModelRefused",
        "RuneError",
        "ServerBusy",
        "ServerUnreachable",
        "StorageError",
        "StreamCut",
        "ToolError",
        "TransportError",
    ),
    "rune.inference_trace": ("price_for", "read_traces"),
    "rune.kernels": ("BACKEND", "get_estimator"),
    "rune.rune_operator": ("OperatorResponse", "RuneOperator"),
    "rune.runtime.local_tool_runtime": ("LocalToolRuntime",),
    "rune.runtime.task_state": ("TaskState",),
    "rune.runtime.tool_executor": ("TOOLS", "Tool", "ToolContext", "tool"),
    "rune.settings": ("Settings",),
    "rune.subsystem_health": ("record_failure",),
    "rune.transports.discovery": ("context_length",),
    "rune.transports.llama_cpp": ("LlamaCppChatTransport",),
    "rune.transports.ollama": ("OllamaChatTransport",),
    "rune.transports.openai_compat": ("OpenAIChatTransport",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'rune' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

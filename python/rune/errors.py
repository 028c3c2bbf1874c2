"""Every error that Rune raises on purpose, as one tree.

* RuneError: the root; catch it to catch everything below.
  - InvalidInput: an argument, a file or a setting that cannot be used as given (also a ValueError).
    + ApprovalError: a pending approval that cannot be decided as asked, or that must be decided first.
  - BackendError: ``RUNE_BACKEND`` asked for a kernel backend that is not there (also an ImportError).
  - ContextOverflowError: what must enter the window does not fit it, and nothing was cut.
  - TransportError: a model server could not be used.
    + ServerUnreachable: no connection, or no answer in time.
    + ModelNotFound: the server does not have this model.
    + ServerBusy: the server's queue stayed full through every retry.
    + StreamCut: the reply ended before the server said that it was done.
    + PromptRefused: the server refused the prompt as longer than its window.
    + BadReply: the server answered something that is no reply, or an error of its own.
    + RemoteModelRefused: the local server would send the prompt to a cloud.
  - ToolError: a tool call that failed; its text goes back to the model.
  - StorageError: a row, a file or a database that could not be written or read.

Data rides on attributes; the message says what happened and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
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
]

SERVER_WORDS_MAX = 300


class RuneError(Exception):
    """The root of all errors that Rune raises on purpose."""


class InvalidInput(RuneError, ValueError):
    """An argument, a file or a setting that cannot be used as given."""


class ApprovalError(InvalidInput):
    """A pending approval that cannot be decided as asked, or that must be decided first.

    Attributes:
        pending_id: the whole id where it is known, else "".
        reason: "unknown", "ambiguous", "changed", "expired", "decided", "tools", "arguments" or "waiting".
    """

    def __init__(self, message: str, *, pending_id: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.pending_id = pending_id
        self.reason = reason


class BackendError(RuneError, ImportError):
    """``RUNE_BACKEND`` asked for a kernel backend that is not there."""


class ContextOverflowError(RuneError):
    """What must enter the window does not fit it, and nothing was cut.

    Attributes:
        window, reserve, margin, budget: tokens; the budget is window - reserve - margin.
        blocks: one ``{"name", "tokens"}`` per mandatory block, in assembly order.
        block: name of the first mandatory block that did not fit, or None (budget <= 0 without one).
        block_tokens: its tokens.
        used_before: tokens of the mandatory blocks before it.
        trace: the partial broker trace, or None when the server refused.
        origin: "broker", "server" or "tool_loop".
        served_prompt_tokens, server_window: the server's own numbers after a refusal, else None.
        capsule: what was collected, for ``ContextBroker.readmit``; None unless the broker raised it.
    """

    def __init__(
        self,
        message: str,
        *,
        window: int,
        reserve: int = 0,
        margin: int = 0,
        budget: int = 0,
        blocks: Sequence[Mapping[str, Any]] = (),
        block: str | None = None,
        block_tokens: int = 0,
        used_before: int = 0,
        trace: dict[str, Any] | None = None,
        origin: str = "broker",
        served_prompt_tokens: int | None = None,
        server_window: int | None = None,
    ) -> None:
        super().__init__(message)
        self.window = window
        self.reserve = reserve
        self.margin = margin
        self.budget = budget
        self.blocks = [dict(b) for b in blocks]
        self.block = block
        self.block_tokens = block_tokens
        self.used_before = used_before
        self.trace = trace
        self.origin = origin
        self.served_prompt_tokens = served_prompt_tokens
        self.server_window = server_window
        self._capsule: Any = None

    @property
    def capsule(self) -> Any:
        return self._capsule  # not among the data that is shown with an error: it holds every text of the turn

    @capsule.setter
    def capsule(self, capsule: Any) -> None:
        self._capsule = capsule


class TransportError(RuneError):
    """A model server could not be used.

    Attributes:
        status: HTTP status, or None when there was no answer.
        server_words: what the server said, at most 300 characters.
        url: the address asked, without credentials.
    """

    def __init__(self, message: str, *, status: int | None = None, server_words: str = "", url: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.server_words = server_words[:SERVER_WORDS_MAX]
        self.url = url


class ServerUnreachable(TransportError):
    """No connection to the server, or no answer in time."""


class ModelNotFound(TransportError):
    """The server does not have this model."""


class ServerBusy(TransportError):
    """The server's queue stayed full through every retry."""


class StreamCut(TransportError):
    """The reply ended before the server said that it was done; ``partial_text`` is what had arrived."""

    def __init__(self, message: str, *, partial_text: str = "", **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.partial_text = partial_text


class PromptRefused(TransportError):
    """The server refused the prompt as longer than its window; its numbers ride along where it gave them."""

    def __init__(
        self, message: str, *, n_prompt_tokens: int | None = None, n_ctx: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(message, **kwargs)
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class BadReply(TransportError):
    """The server answered something that is no reply, or an error of its own; ``partial_text`` may hold a start."""

    def __init__(self, message: str, *, partial_text: str = "", **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.partial_text = partial_text


class RemoteModelRefused(TransportError):
    """The local server would send the prompt to a cloud, and ``RUNE_ALLOW_REMOTE`` is not set."""


class ToolError(RuneError):
    """A tool call that failed; its text goes back to the model as the tool's result."""


class StorageError(RuneError):
    """A row, a file or a database that could not be written or read."""

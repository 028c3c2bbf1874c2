"""What an Ollama server does, by its version. Sources: Ollama's tags, and recordings of 0.12.5, 0.24.0 and 0.32.15."""

from __future__ import annotations

import re

from rune.transports.verdict import ServerTraits

__all__ = [
    "Version",
    "clamps_num_ctx",
    "default_window",
    "effective_window",
    "parse_version",
    "ps_window_is_exact",
    "traits",
]

Version = tuple[int, int, int]

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")

FIRST_TO_COUNT_ALL: Version = (0, 4, 0)
FIRST_TO_CLAMP: Version = (0, 9, 3)
FIRST_TO_REFUSE: Version = (0, 12, 6)
FIRST_WITH_EXACT_PS: Version = (0, 15, 5)
FIRST_LLAMA_SERVER: Version = (0, 30, 0)
COUNTS_UNCACHED_ONLY: Version = (0, 30, 0)
FIRST_TO_HALVE: Version = (0, 30, 11)
SMALLEST_WINDOW = 4
FIRST_WITH_4096: Version = (0, 6, 7)


def parse_version(text: object) -> Version | None:
    """Major, minor and patch of a version text; a suffix is ignored. None for a development build (0.0.0) or no version."""
    match = _VERSION.match(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    version = (int(match[1]), int(match[2]), int(match[3]))
    return None if version == (0, 0, 0) else version


def traits(version: Version | None) -> ServerTraits:
    """How a server of this version behaves; an unknown one counts as one that cannot refuse."""
    if version is None:
        return ServerTraits(can_refuse=None, reply_slack=1)
    in_tree_runner = version < FIRST_LLAMA_SERVER
    return ServerTraits(
        can_refuse=version >= FIRST_TO_REFUSE,
        counts_all=version >= FIRST_TO_COUNT_ALL and version != COUNTS_UNCACHED_ONLY,
        halves=version >= FIRST_TO_HALVE,
        takes_full_window=in_tree_runner,
        reply_slack=1 if in_tree_runner else 0,
    )


def clamps_num_ctx(version: Version | None) -> bool:
    """Whether a num_ctx above the trained window is lowered to it (in silence)."""
    return version is None or version >= FIRST_TO_CLAMP


def ps_window_is_exact(version: Version | None) -> bool:
    """Whether ``/api/ps`` reports the window after that lowering."""
    return version is not None and version >= FIRST_WITH_EXACT_PS


def effective_window(num_ctx: int, trained: int | None, version: Version | None) -> int:
    """The window that the server works with when it was sent ``num_ctx``; below 4 it takes 4."""
    window = max(num_ctx, SMALLEST_WINDOW)
    if trained is not None and clamps_num_ctx(version):
        window = min(window, trained)
    return window


def default_window(version: Version | None) -> int:
    """Tokens of window that a client gets that sends no ``num_ctx``, on a machine without much graphics memory.

    From 0.15.5 on it is 32768 with 23 GiB of it and 262144 with 47; ``OLLAMA_CONTEXT_LENGTH`` of the server overrides it.
    """
    return 2048 if version is not None and version < FIRST_WITH_4096 else 4096

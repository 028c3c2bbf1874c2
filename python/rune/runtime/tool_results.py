"""Whole texts of tool results that were too long for a prompt, or had to make room in it, kept on disk."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path

from rune.errors import StorageError, ToolError
from rune.paths import private_dir
from rune.subsystem_health import record_failure

__all__ = ["FILES_MAX", "RESULT_CHARS_MAX", "ResultStore", "bounded"]

RESULT_CHARS_MAX = 8_000
"""Characters of one result that enter the prompt."""

FILES_MAX = 1_000
"""Results kept; the oldest go first."""

_PREFIX = "tool_result:"
_NAME = re.compile(r"[0-9a-f]{12}-[0-9]{1,9}")


class ResultStore:
    """The results of one run, in ``folder``. What is kept is named ``tool_result:<run>-<n>``, and ``read_file`` reads it."""

    def __init__(self, folder: str | os.PathLike[str], run_id: str) -> None:
        self.folder = Path(folder)
        self._run = run_id[:12]
        self._lock = threading.Lock()
        self._count = 0

    def keep(self, text: str) -> str:
        """Keeps a text and returns its name; "" when it could not be written, which is recorded (``storage.degraded``)."""
        with self._lock:
            first, self._count = self._count == 0, self._count + 1
            name = f"{self._run}-{self._count}"
        try:
            if first:
                self._make_room()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            with os.fdopen(os.open(self._path(name), flags, 0o600), "wb") as file:
                file.write(text.encode("utf-8", "surrogatepass"))
        except (OSError, StorageError) as exc:
            record_failure("storage.degraded", exc, tier=2)
            with contextlib.suppress(OSError):
                self._path(name).unlink(missing_ok=True)
            return ""
        return _PREFIX + name

    def find(self, name: str) -> Path | None:
        """The file of a kept result, or None when ``name`` is no name of one. Raises ToolError when it is gone."""
        if not name.startswith(_PREFIX):
            return None
        bare = name.removeprefix(_PREFIX)
        if not _NAME.fullmatch(bare) or not self._path(bare).is_file():
            raise ToolError(f"there is no {name!r} any more; call the tool again")
        return self._path(bare)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def _make_room(self) -> None:
        private_dir(self.folder)
        with os.scandir(self.folder) as entries:
            files = sorted((entry.stat().st_mtime, entry.path) for entry in entries if entry.name.endswith(".txt"))
        for _, path in files[: max(0, len(files) - FILES_MAX + 1)]:
            Path(path).unlink(missing_ok=True)


def bounded(text: str, store: ResultStore, limit: int = RESULT_CHARS_MAX, *, tail: bool = False) -> tuple[str, str]:
    """The text, or ``limit`` characters of it and a line that names the whole; and that name ("" for none).

    What is shown is the beginning; with ``tail`` a quarter of it is, and the rest is the end.
    """
    if len(text) <= limit:
        return text, ""
    name = store.keep(text)
    where = f"the whole is {name}, which read_file can read" if name else "the rest could not be kept"
    note = f"[{len(text) - limit:,} more of {len(text):,} characters were left out; {where}]"
    if not tail:
        return f"{text[:limit]}\n{note}", name
    head = limit // 4
    return f"{text[:head]}\n{note}\n{text[len(text) - (limit - head) :]}", name

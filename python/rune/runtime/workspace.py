"""The folder that tools may touch, and nothing outside of it: every path is resolved before it is used."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from rune.errors import InvalidInput, ToolError

__all__ = ["Workspace"]

# A symlink that came after the path was resolved is not followed, and a pipe does not hang the open.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class Workspace:
    """A root folder. ``closed`` are folders inside it that stay out of reach (the Rune home: it may hold keys).

    Raises InvalidInput when the root cannot be found.
    """

    def __init__(self, root: str | os.PathLike[str], closed: Iterable[str | os.PathLike[str]] = ()) -> None:
        try:
            self.root = Path(root).resolve()
            found = [Path(folder).resolve() for folder in closed]
        except (OSError, RuntimeError, ValueError) as exc:
            raise InvalidInput(
                f"the workspace {str(root)!r} cannot be used: {exc}; set RUNE_WORKSPACE to a folder"
            ) from exc
        self._closed = tuple(f for f in found if f != self.root and f.is_relative_to(self.root))

    def __repr__(self) -> str:
        return f"Workspace({str(self.root)!r})"

    def resolve(self, path: str) -> Path:
        """The real path, symlinks and ``..`` followed; relative ones start at the root. Raises ToolError when it is outside."""
        try:
            found = (self.root / path).resolve()
        except (OSError, RuntimeError, ValueError) as exc:
            raise ToolError(f"{path!r} cannot be used as a path: {exc}") from exc
        if not found.is_relative_to(self.root):
            raise ToolError(f"{path!r} is outside of the workspace {self.root}; only paths inside of it can be used")
        if self.is_closed(found):
            raise ToolError(f"{path!r} is in a folder that tools must not touch")
        return found

    def is_closed(self, path: Path) -> bool:
        """Whether a path under the root is out of reach."""
        return any(path.is_relative_to(folder) for folder in self._closed)

    def name(self, path: Path) -> str:
        """A resolved path as the model knows it: relative to the root, with ``/``."""
        return path.relative_to(self.root).as_posix()

    def open(self, path: Path) -> BinaryIO:
        """A resolved path, opened for reading. Raises ToolError unless it is a regular file that can be read."""
        try:
            descriptor = os.open(path, _READ)
        except OSError as exc:
            raise ToolError(f"{self.name(path)!r} cannot be read: {exc.strerror or exc}") from exc
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            what = "a folder; list_files shows what is in it" if path.is_dir() else "no regular file"
            raise ToolError(f"{self.name(path)!r} is {what}")
        return os.fdopen(descriptor, "rb")

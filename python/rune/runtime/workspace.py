"""The folder that tools may touch, and nothing outside of it.

Every path is resolved first, and what it then names is reached from the root, folder by folder, without following links: a
link that came in between leads nowhere. Where the system cannot open relative to a folder (Windows), the path is opened as it
was resolved.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from rune.errors import InvalidInput, ToolError
from rune.runtime.whole_file import put

__all__ = ["Entry", "Workspace"]

_BY_FOLDER = {os.open, os.mkdir, os.stat, os.unlink, os.rename} <= os.supports_dir_fd and os.scandir in os.supports_fd
_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# A pipe does not hang the open, and a link is not followed.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _PLAIN
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | _PLAIN
_PATH_MAX = 4_000  # bytes
_NAME_MAX = 255
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/|file:", re.IGNORECASE)
_GUARDED = frozenset({".git", ".hg", ".svn"})
"""Folders that are read and never written: hooks in them run as programs, and they hold the way back."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a folder holds: ``kind`` is "folder", "file", "link" or "other"; ``size`` in bytes of a file, None when unknown."""

    path: Path
    kind: str
    size: int | None = None


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
        _check_spelling(path)
        try:
            found = (self.root / path).resolve()
            too_long = len(os.fsencode(found)) > _PATH_MAX or any(len(os.fsencode(p)) > _NAME_MAX for p in found.parts)
        except (OSError, RuntimeError, ValueError) as exc:
            raise ToolError(f"{path[:200]!r} cannot be used as a path: {exc}") from exc
        if too_long:  # checked here because folders on the way are made one by one
            raise ToolError(f"{path[:200]!r}… is too long for a path")
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

    # Reading

    def open(self, path: Path) -> BinaryIO:
        """A resolved path, opened for reading. Raises ToolError unless it is a regular file that can be read."""
        try:
            with self._folder(path.parent if path != self.root else path) as folder:
                descriptor = os.open(self._at(folder, path), _READ, dir_fd=folder)
        except OSError as exc:
            raise ToolError(f"{self.name(path)!r} cannot be read: {exc.strerror or exc}") from exc
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            os.close(descriptor)
            what = "a folder; list_files shows what is in it" if is_folder else "no regular file"
            raise ToolError(f"{self.name(path)!r} is {what}")
        return os.fdopen(descriptor, "rb")

    def entries(self, path: Path, *, sizes: bool = False) -> list[Entry]:
        """What a resolved folder holds, by name, without what is closed. Raises OSError."""
        found: list[Entry] = []
        with self._folder(path) as folder, os.scandir(path if folder is None else folder) as listing:
            for entry in sorted(listing, key=lambda one: one.name):
                where = path / entry.name
                if self.is_closed(where):
                    continue
                kind = "link" if entry.is_symlink() else _kind(entry)
                size = None
                if sizes and kind == "file":
                    with contextlib.suppress(OSError):
                        size = entry.stat(follow_symlinks=False).st_size
                found.append(Entry(where, kind, size))
        return found

    # Writing

    def check_writable(self, path: Path) -> None:
        """Raises ToolError for a resolved path that is read only by rule: the root itself, and what version control keeps."""
        if path == self.root:
            raise ToolError("the workspace itself is a folder and cannot be written")
        if any(part.lower() in _GUARDED for part in path.relative_to(self.root).parts):
            raise ToolError(f"{self.name(path)!r} belongs to version control; tools do not write there")

    def write(self, path: Path, data: bytes) -> bool:
        """Puts ``data`` in the place of a resolved path, whole or not at all; returns whether a file was there before.

        Missing folders are made. A file that was there keeps its permissions. Raises ToolError.
        """
        self.check_writable(path)
        try:
            with self._folder(path.parent, make=True) as folder:
                return put(folder, self._at(folder, path), data)
        except OSError as exc:
            raise ToolError(f"{self.name(path)!r} cannot be written: {exc.strerror or exc}") from exc

    # On the way

    @contextmanager
    def _folder(self, path: Path, *, make: bool = False) -> Iterator[int | None]:
        """A descriptor of a resolved folder, or None where the system has none. Raises OSError."""
        if not _BY_FOLDER:
            if make:
                path.mkdir(parents=True, exist_ok=True)
            yield None
            return
        descriptor = os.open(self.root, _FOLDER)
        try:
            for part in path.relative_to(self.root).parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=descriptor)
                inner = os.open(part, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _at(self, folder: int | None, path: Path) -> str:
        """The name to open relative to a folder's descriptor: the last part, or all of it without one."""
        if folder is None:
            return str(path)
        return path.name if path != self.root else "."


def _check_spelling(path: str) -> None:
    """Raises ToolError for what another program would read as a way out: refused rather than taken for a strange name."""
    if _URL.match(path):
        raise ToolError(f"{path!r} is an address; name a file by its path in the workspace")
    if path == "~" or re.match(r"~[^/]*/", path):
        raise ToolError(f"{path!r} begins with '~', which is not read as a home; name a path in the workspace")
    if os.sep == "/" and "\\" in path:
        raise ToolError(f"{path!r} has a backslash in it; put '/' between folders")
    folded = unquote(unicodedata.normalize("NFKC", path))
    if folded != path and ".." in re.split(r"[/\\]", folded) and ".." not in path.split("/"):
        raise ToolError(f"{path!r} has '..' in disguise; only paths inside of the workspace can be used")


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"

"""Turns that wait for a person: one file each, whole or not there, sealed by a digest, and decided once.

``<home>/state/pending/<run id>.json`` (0600) holds everything that the turn needs to go on, in another process and on another
day. Whoever decides claims it first: the file is renamed, which only one of several processes can do. What is claimed is
removed when the turn has ended; one whose process was killed meanwhile stays, and is shown as interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rune import paths
from rune.errors import ApprovalError, InvalidInput, StorageError
from rune.storage.log import DurableLog

__all__ = [
    "DECIDED",
    "PENDING_VERSION",
    "Decision",
    "PendingInfo",
    "PendingRuns",
    "expiry",
    "has_expired",
    "not_as_written",
    "seal",
]

PENDING_VERSION = 1
DECIDED = "approval_decided"
"""The journal's event of a decision."""

_FILE = re.compile(r"([0-9a-f]{32})(\.claimed)?\.json")
_SHA = "sha256"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided on one call. ``arguments`` replace the model's own when given; ``reason`` goes with a refusal."""

    approved: bool
    reason: str = ""
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PendingInfo:
    """One file: ``status`` is "waiting", "answer missing" (the call was made, the model's answer is not there), "expired",
    "interrupted" (decided, and its process is at work or was killed) or "changed" (not as it was written: ``state`` is None).
    """

    id: str
    status: str
    state: Mapping[str, Any] | None = None


class PendingRuns:
    """The pending runs of a home (that of the environment when None)."""

    def __init__(self, home: Path | str | None = None) -> None:
        self.folder = paths.pending_dir(home)
        self._journal = paths.journal(home)

    # Writing

    def save(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Keeps a state under its ``id`` and returns it as it will be read, with its ``sha256``.

        It is on disk when this returns. Raises StorageError when it cannot be written, InvalidInput when it is not JSON.
        """
        sealed = seal(state)
        path = self._path(sealed["id"])
        draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            paths.private_dir(self.folder)
            try:
                with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                    file.write(_encoded(sealed) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(draft, path)
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(self.folder)
        except OSError as exc:
            raise StorageError(f"the turn that waits for an approval could not be kept in {path}: {exc}") from exc
        return sealed

    def claim(self, id: str, sha256: str) -> None:
        """Makes the state of ``id`` the caller's alone. Raises ApprovalError when another one was first, or it was changed."""
        try:
            os.rename(self._path(id), self._path(id, claimed=True))
        except FileNotFoundError:
            raise self._missing(id) from None
        except OSError as exc:
            raise StorageError(f"the pending approval {id[:12]} cannot be taken: {exc}") from exc
        state = _read(self._path(id, claimed=True))
        if state is None or state.get(_SHA) != sha256:
            self.release(id)
            raise not_as_written(id)

    def release(self, id: str) -> None:
        """Gives back what was claimed, where nothing came of it."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path(id, claimed=True), self._path(id))

    def remove(self, id: str) -> bool:
        """Removes a state, claimed or not; whether there was one. Raises StorageError when it cannot be removed."""
        found = False
        for path in (self._path(id, claimed=True), self._path(id)):
            try:
                path.unlink()
                found = True
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise StorageError(f"{path} cannot be removed: {exc}") from exc
        return found

    # Reading

    def entries(self) -> list[PendingInfo]:
        """All of them, the oldest first. Raises StorageError when the folder cannot be read."""
        there = (self._info(id, claimed) for id, claimed in self._files())
        found = [info for info in there if info is not None]
        return sorted(found, key=lambda info: (str((info.state or {}).get("created", "")), info.id))

    def find(self, prefix: str) -> PendingInfo:
        """The one whose id begins with ``prefix``. Raises ApprovalError when there is none, or more than one."""
        there = {id: claimed for id, claimed in self._files() if prefix and id.startswith(prefix.strip().lower())}
        if not there:
            raise self._missing(prefix)
        if len(there) > 1:
            shown = ", ".join(id[:12] for id in sorted(there))
            raise ApprovalError(
                f"{len(there)} pending approvals begin with {prefix!r}: {shown}; give more of the id",
                reason="ambiguous",
            )
        (id, claimed), *_ = there.items()
        # Claimed or ended between two looks: what it is now counts.
        info = self._info(id, claimed) or self._info(id, True)
        if info is None:
            raise self._missing(id)
        return info

    def read(self, prefix: str) -> dict[str, Any]:
        """The state that can be gone on with, by the beginning of its id.

        Raises ApprovalError: there is none, it was changed, it has expired, or it was decided already.
        """
        info = self.find(prefix)
        if info.status == "changed" or info.state is None:
            raise not_as_written(info.id)
        if info.status == "interrupted":
            raise ApprovalError(
                f"the pending approval {info.id[:12]} was decided already: it is being carried out, or its process was ended "
                f"in the middle. If nothing is at work on it: rune pending forget {info.id[:12]}",
                pending_id=info.id,
                reason="decided",
            )
        if info.status == "expired":
            raise ApprovalError(
                f"the pending approval {info.id[:12]} expired on {info.state['expires']}, and its call was not made. Ask again; "
                f"rune pending forget {info.id[:12]} removes it",
                pending_id=info.id,
                reason="expired",
            )
        # A copy of a file that was put back must not run its call once more.
        if (decided := self._decided(info.id)) is not None:
            raise decided
        return dict(info.state)

    def status(self, id: str) -> str | None:
        """The status of exactly this id, or None when there is no such file."""
        info = self._info(id, False) or self._info(id, True)
        return None if info is None else info.status

    def _info(self, id: str, claimed: bool) -> PendingInfo | None:
        """What the file of an id is; None where there is none."""
        path = self._path(id, claimed=claimed)
        state = _read(path)
        if state is None and not path.exists():
            return None
        if state is None or state["id"] != id:
            return PendingInfo(id, "changed")
        if claimed:
            return PendingInfo(id, "interrupted", state)
        if has_expired(state):
            return PendingInfo(id, "expired", state)
        return PendingInfo(id, "waiting" if state.get("pending_calls") else "answer missing", state)

    def _files(self) -> Iterator[tuple[str, bool]]:
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return
        except OSError as exc:
            raise StorageError(f"the pending approvals in {self.folder} cannot be read: {exc}") from exc
        for name in names:
            if match := _FILE.fullmatch(name):
                yield match[1], match[2] is not None

    def _path(self, id: str, *, claimed: bool = False) -> Path:
        return self.folder / f"{id}{'.claimed' if claimed else ''}.json"

    def _missing(self, prefix: str) -> ApprovalError:
        """Why there is nothing under that id, as far as the journal remembers."""
        if _FILE.fullmatch(f"{prefix}.json") and self._path(prefix, claimed=True).exists():
            return ApprovalError(
                f"the pending approval {prefix[:12]} was decided already, by another process", reason="decided"
            )
        return self._decided(prefix) or ApprovalError(
            f"there is no pending approval {prefix!r}; rune pending list shows those that there are", reason="unknown"
        )

    def _decided(self, prefix: str) -> ApprovalError | None:
        """The error that says when it was decided, if the journal knows of that."""
        decided = None
        if prefix:
            with contextlib.suppress(StorageError):
                for row in DurableLog(self._journal).read():
                    if row.get("event") == DECIDED and str(row.get("pending", "")).startswith(prefix):
                        decided = row
        if decided is None:
            return None
        return ApprovalError(
            f"the pending approval {str(decided['pending'])[:12]} was decided already: {decided.get('decision')} on "
            f"{decided.get('time')} (run {str(decided.get('run_id'))[:12]})",
            pending_id=str(decided["pending"]),
            reason="decided",
        )


# States


def seal(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as JSON brings it back, with the digest of all of it. Raises InvalidInput for what is not JSON."""
    try:
        found: dict[str, Any] = json.loads(_encoded({name: value for name, value in state.items() if name != _SHA}))
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidInput(f"the turn cannot be kept as JSON: {exc}") from exc
    return {**found, _SHA: _digest(found)}


def _encoded(value: Any) -> bytes:
    """Compact JSON in ASCII; the order of names stays, as it is part of what a server is sent."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encoded({name: value for name, value in state.items() if name != _SHA})).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    """The state of a file, or None when it is not what was written."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            state = json.loads(file.read())
        whole = isinstance(state, dict) and state.get(_SHA) == _digest(state)
    except (OSError, ValueError, RecursionError):
        return None
    return state if whole and state.get("pending_version") == PENDING_VERSION and "id" in state else None


def not_as_written(id: str) -> ApprovalError:
    """The error for a state that was changed."""
    return ApprovalError(
        f"the pending approval {id[:12]} is not as it was written: its sha256 does not match, or another version of Rune wrote "
        f"it. Nothing of it is carried out. Ask again; rune pending forget {id[:12]} removes it",
        pending_id=id,
        reason="changed",
    )


def expiry(days: float) -> str:
    """The time so many days from now, ISO 8601 in UTC; the end of the calendar when that is beyond it."""
    try:
        return (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC).isoformat(timespec="seconds")


def has_expired(state: Mapping[str, Any]) -> bool:
    """Whether a state's time is over; one without a readable time has none left."""
    try:
        return datetime.fromisoformat(str(state.get("expires"))) <= datetime.now(UTC)
    except (ValueError, TypeError):
        return True


def _sync_folder(folder: Path) -> None:
    """Puts the new name on disk as well, where folders can be synced."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

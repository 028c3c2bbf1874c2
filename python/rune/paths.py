"""Where everything lives under the Rune home. Asking for a path creates nothing.

::

    <home>/config.toml
    <home>/sessions/<id>.jsonl
    <home>/state/inference_traces.jsonl, history_archive.jsonl, journal.jsonl, rune.sqlite3
    <home>/state/tool_results/, pending/

Every function takes the home, or None for the one that the environment names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from rune.errors import InvalidInput, StorageError

__all__ = [
    "Home",
    "check_session_id",
    "config_file",
    "database",
    "history_archive",
    "inference_traces",
    "journal",
    "pending_dir",
    "private_dir",
    "rune_home",
    "session_file",
    "session_path",
    "sessions_dir",
    "state_dir",
    "tool_results_dir",
]

Home = Path | str | None
"""The Rune home, or None for the environment's."""

PRIVATE_DIR_MODE = 0o700
SESSION_ID_MAX = 120

# Names that every file system takes, that no shell, glob or option parser misreads, and that cannot leave their folder.
_SESSION_ID = re.compile(rf"[A-Za-z0-9_](?:[A-Za-z0-9._-]{{0,{SESSION_ID_MAX - 2}}}[A-Za-z0-9_-])?")
_WINDOWS_DEVICES = re.compile(r"(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")


def rune_home(env: Mapping[str, str] | None = None) -> Path:
    """The home: ``RUNE_HOME`` (``~`` expanded), else the platform's folder for a user's data. Always absolute.

    Raises InvalidInput when ``RUNE_HOME`` names nobody's home.
    """
    given = (os.environ if env is None else env).get("RUNE_HOME", "").strip()
    if given:
        return _absolute(given)
    from platformdirs import user_data_path

    return user_data_path("rune", appauthor=False)


def _absolute(given: Path | str) -> Path:
    try:
        return Path(given).expanduser().absolute()
    except (RuntimeError, OSError, ValueError) as exc:
        raise InvalidInput(f"the Rune home {str(given)!r} cannot be used: {exc}") from exc


def _under(home: Home, *names: str) -> Path:
    return (rune_home() if home is None else _absolute(home)).joinpath(*names)


def config_file(home: Home = None) -> Path:
    """``config.toml``: settings, tiers, models and prices."""
    return _under(home, "config.toml")


def state_dir(home: Home = None) -> Path:
    """The folder of what Rune itself writes, sessions excepted."""
    return _under(home, "state")


def inference_traces(home: Home = None) -> Path:
    """One row per run."""
    return state_dir(home) / "inference_traces.jsonl"


def history_archive(home: Home = None) -> Path:
    """The raw turns of every compaction."""
    return state_dir(home) / "history_archive.jsonl"


def journal(home: Home = None) -> Path:
    """What began, ended and failed."""
    return state_dir(home) / "journal.jsonl"


def database(home: Home = None) -> Path:
    """Memories, entities and neurons."""
    return state_dir(home) / "rune.sqlite3"


def tool_results_dir(home: Home = None) -> Path:
    """Full texts of tool results that were taken out of a prompt."""
    return state_dir(home) / "tool_results"


def pending_dir(home: Home = None) -> Path:
    """Runs that wait for an approval."""
    return state_dir(home) / "pending"


def sessions_dir(home: Home = None) -> Path:
    """The conversations, one file each."""
    return _under(home, "sessions")


def check_session_id(id: object) -> str:
    """The id itself. Raises InvalidInput when it cannot be the name of a file on every system."""
    if not isinstance(id, str) or not _SESSION_ID.fullmatch(id) or _WINDOWS_DEVICES.fullmatch(id):
        raise InvalidInput(
            f"{str(id)[:60]!r} cannot be the id of a session: use 1 to {SESSION_ID_MAX} ASCII letters, digits, '_', '-' and "
            "'.', with no '-' or '.' at the start and no '.' at the end"
        )
    return id


def session_path(id: str, home: Home = None) -> Path:
    """The file of a session. Raises InvalidInput as ``check_session_id``."""
    return sessions_dir(home) / f"{check_session_id(id)}.jsonl"


def session_file(home: Home, id: str) -> Path:
    """``session_path`` with the home first, as the other functions of this module have it."""
    return session_path(id, home)


def private_dir(path: Path | str) -> Path:
    """Makes a folder and its missing parents, each for the owner alone (0700), and returns it; one that is there stays.

    Raises StorageError when it cannot be made, or a file is in its place.
    """
    folder = Path(path)
    try:
        # Without this, parents made on the way would get the usual mode that lets others look.
        for missing in reversed([folder, *folder.parents]):
            if not missing.is_dir():
                missing.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    except OSError as exc:
        raise StorageError(
            f"the folder {folder} cannot be made: {exc.strerror or exc}. Make it writable, or set RUNE_HOME to a folder "
            "that may be written"
        ) from exc
    return folder

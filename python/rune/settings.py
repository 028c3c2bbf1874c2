"""Every setting: what it means, where its value came from, and what a wrong one should have been.

The environment comes first (``RUNE_<NAME>``, then a few names of others such as ``OLLAMA_HOST``), then ``config.toml`` in the
Rune home, then the default. ``config.toml`` also holds the tables ``[tiers]``, ``[safety_rules.name]``,
``[models."name"]`` and ``[prices."name"]``.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from rune import settings_kinds as kinds
from rune import settings_tables
from rune.errors import InvalidInput
from rune.paths import config_file, rune_home

__all__ = ["SettingRow", "Settings"]

MASK = "***"
_SECRET_NAME = re.compile(r"(?i)(key|token|secret|password)$")
_USERINFO = re.compile(r"(?:(?<=//)|^)[^/\s]+(?=@)")


class SettingRow(NamedTuple):
    """A setting as ``rune doctor`` shows it; secrets are masked in ``value``."""

    name: str
    value: Any
    origin: str
    variable: str
    meaning: str


def _setting(
    default: Any,
    kind: Callable[[Any], Any],
    meaning: str,
    *,
    also: tuple[str, ...] = (),
    secret: bool = False,
    url: bool = False,
    environment_only: bool = False,
    file_only: bool = False,
) -> Any:
    """A field of Settings. ``also``: further variables that are read after ``RUNE_<NAME>``."""
    metadata = {
        "kind": kind,
        "meaning": meaning,
        "also": also,
        "secret": secret,
        "url": url,
        "environment_only": environment_only,
        "file_only": file_only,
    }
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings:
    """All settings, read once. ``Settings.load()`` reads them; the constructor takes them as given."""

    home: Path = field(default_factory=rune_home)

    model: str | None = _setting(None, kinds.text, "the model to run")
    engine: Literal["auto", "ollama", "llama.cpp", "openai"] = _setting(
        "auto", kinds.choice("auto", "ollama", "llama.cpp", "openai"), "what runs the model"
    )
    estimator: Literal["chars4", "script"] = _setting(
        "chars4", kinds.choice("chars4", "script"), "what measures tokens"
    )
    layout: Literal["seed", "cache"] = _setting(
        "seed", kinds.choice("seed", "cache"), "the order of blocks in the prompt"
    )
    backend: Literal["auto", "rust", "python"] = _setting(
        "auto", kinds.choice("auto", "rust", "python"), "which kernels run", environment_only=True
    )

    num_ctx: int | None = _setting(
        None, kinds.tokens, "window in tokens to ask the server for; chosen per turn when unset"
    )
    num_ctx_max: int = _setting(32768, kinds.tokens, "largest window in tokens that is chosen without being asked for")
    readmission: bool = _setting(True, kinds.switch, "whether a prompt that is refused is admitted again by script")
    num_predict: int | None = _setting(None, kinds.tokens, "longest reply in tokens; what the window leaves when unset")
    keep_alive: str | int | None = _setting(None, kinds.keep_alive, "how long the server keeps the model loaded")
    think: bool | str | None = _setting(None, kinds.think, "whether, or how much, a thinking model thinks")

    ollama_host: str | None = _setting(
        None, kinds.text, "address of the Ollama server", also=("OLLAMA_HOST",), url=True
    )
    ollama_api_key: str | None = _setting(
        None, kinds.text, "key for the Ollama server", also=("OLLAMA_API_KEY",), secret=True
    )
    openai_base_url: str | None = _setting(None, kinds.http_url, "address of an OpenAI-compatible server", url=True)
    openai_api_key: str | None = _setting(None, kinds.text, "key for that server", also=("RUNE_API_KEY",), secret=True)
    openai_context_length: int | None = _setting(None, kinds.tokens, "window in tokens of that server's model")
    gguf: Path | None = _setting(None, kinds.path, "model file of the embedded engine")  # noqa: RUF009 - makes a field
    allow_remote: bool = _setting(False, kinds.switch, "whether a local server may send prompts to a cloud")
    connect_timeout_s: float = _setting(
        5.0, kinds.seconds, "seconds to wait for a connection", also=("RUNE_CONNECT_TIMEOUT",)
    )
    read_timeout_s: float = _setting(
        600.0, kinds.seconds, "seconds to wait for the next bytes of a reply", also=("RUNE_READ_TIMEOUT",)
    )
    discovery_timeout_s: float = _setting(5.0, kinds.seconds, "seconds to wait for facts about a model")

    trace: Literal["full", "content-off", "off"] = _setting(
        "full", kinds.choice("full", "content-off", "off"), "what the record of a run holds"
    )
    trace_max_bytes: int = _setting(10_485_760, kinds.whole(1024), "bytes after which the trace file is rotated")
    trace_backups: int = _setting(3, kinds.whole(0, 10_000), "rotated trace files to keep")
    compaction: bool = _setting(True, kinds.switch, "whether long histories are summarised")
    memory_off: bool = _setting(False, kinds.loose_switch, "whether memory stays out of the prompt")
    neuron_half_life_hours: float = _setting(24.0, kinds.hours, "hours after which a neuron is half as warm")
    contributor_timeout_s: float = _setting(2.0, kinds.seconds, "seconds that a contributor may take")

    tools: tuple[str, ...] | None = _setting(
        None, kinds.names, "tools to offer to the model; those that are on by default when unset"
    )
    tool_selection: str = _setting(
        "auto",
        kinds.choice("auto", "all"),
        "whether a task is shown the tools it speaks of where all take much room, or all",
    )
    tool_prompt: Literal["auto", "always", "off"] = _setting(
        "auto",
        kinds.choice("auto", "always", "off"),
        "whether tools are described in the prompt: to models that take none in a request, always, or never",
    )
    auto_approve: tuple[str, ...] = _setting((), kinds.names, "tools that run without asking for an approval")
    approval_days: float = _setting(7.0, kinds.days, "days that a call may wait for its approval")
    http_get: bool = _setting(False, kinds.switch, "whether there is a tool that fetches web pages")
    http_hosts: tuple[str, ...] = _setting(
        (), kinds.names, "hosts of this machine or its network, with or without a port, that it may fetch from"
    )
    workspace: Path | None = _setting(  # noqa: RUF009 - makes a field
        None, kinds.path, "folder that file tools may touch; the current one when unset"
    )
    run_command_timeout_s: float = _setting(60.0, kinds.seconds, "seconds that a command of the model may run")
    max_steps: int = _setting(12, kinds.whole(1, 1000), "model calls of one run at most")

    safety: bool = _setting(True, kinds.switch, "whether tasks that destroy or touch secrets are given a note on it")
    safety_rules: Mapping[str, Any] = _setting(
        {}, settings_tables.safety_rules, "what the safety override looks for besides", file_only=True
    )
    tiers: Mapping[str, Any] = _setting(
        {}, settings_tables.tiers, "models by tier, the smallest first, for the router", file_only=True
    )
    models: Mapping[str, Any] = _setting({}, kinds.tables, "notes and options by model", file_only=True)
    prices: Mapping[str, Any] = _setting({}, kinds.prices, "USD per million tokens by model", file_only=True)

    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def load(cls, home: Path | str | None = None, env: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """The settings of ``home`` (that of the environment when None); ``overrides`` win over all else, unless None.

        ``warnings`` names unknown keys of config.toml and a file that cannot be read.

        Raises:
            InvalidInput: a wrong value (names the key, the value, the place, and what is allowed), config.toml that is no
                TOML, or an override that is no setting.
        """
        env = os.environ if env is None else env
        where = rune_home(env if home is None else {"RUNE_HOME": os.fspath(home)})
        warnings: list[str] = []
        file = config_file(where)
        table = _read_config(file, warnings)
        values: dict[str, Any] = {"home": where}
        origins = {"home": "argument" if home is not None else _home_origin(env)}
        known = {f.name: f for f in fields(cls) if f.metadata}
        for name in overrides:
            if name not in known:
                raise InvalidInput(f"{name!r} is no setting{_nearest(name, known)}")
        for name, setting in known.items():
            given = _given(name, setting.metadata, env, table, overrides, file)
            if given is not None:
                values[name] = _parsed(name, setting.metadata, *given, warnings)
                origins[name] = given[1]
        for key in table:
            if key not in known:
                warnings.append(f"{file}: {key!r} is no setting{_nearest(key, known)}; it is ignored")
            elif known[key].metadata["environment_only"]:
                warnings.append(f"{file}: {key!r} can only be set by {_variables(key, ())[0]}; it is ignored")
        return cls(**values, origins=origins, warnings=tuple(warnings))

    def origin(self, name: str) -> str:
        """Where a value came from: "argument", "environment NAME", the path of config.toml, or "default"."""
        if name != "home" and name not in _SETTINGS:
            raise InvalidInput(f"{name!r} is no setting{_nearest(name, _SETTINGS)}")
        return self.origins.get(name, "default")

    def explain(self) -> list[SettingRow]:
        """Every setting with its value (secrets masked), origin, variable and meaning."""
        rows = [SettingRow("home", str(self.home), self.origin("home"), "RUNE_HOME", "where everything is kept")]
        for name, metadata in _SETTINGS.items():
            variable = "" if metadata["file_only"] else " or ".join(_variables(name, metadata["also"]))
            rows.append(SettingRow(name, self._shown(name), self.origin(name), variable, metadata["meaning"]))
        return rows

    def _shown(self, name: str) -> Any:
        value, metadata = getattr(self, name), _SETTINGS[name]
        if metadata["secret"]:
            return MASK if value else None
        if metadata["url"] and value:
            return _USERINFO.sub(MASK, value)
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, tuple):
            return ", ".join(value) or "none"
        return _masked(value)

    def __repr__(self) -> str:
        changed = ", ".join(f"{name}={self._shown(name)!r}" for name in _SETTINGS if self.origin(name) != "default")
        return f"Settings(home={str(self.home)!r}{', ' if changed else ''}{changed})"


_SETTINGS: dict[str, Mapping[str, Any]] = {f.name: f.metadata for f in fields(Settings) if f.metadata}


def _variables(name: str, also: tuple[str, ...]) -> tuple[str, ...]:
    return (f"RUNE_{name.upper()}", *also)


def _home_origin(env: Mapping[str, str]) -> str:
    return "environment RUNE_HOME" if env.get("RUNE_HOME", "").strip() else "default"


def _read_config(path: Path, warnings: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except OSError as exc:  # a home that cannot be read stops nothing
        warnings.append(f"{path} cannot be read and was left out: {exc.strerror or exc}")
        return {}
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{path} is not UTF-8 (byte {exc.start}); save it as UTF-8") from exc
    except tomllib.TOMLDecodeError as exc:
        raise InvalidInput(f"{path} is no TOML: {exc}") from exc


def _given(
    name: str,
    metadata: Mapping[str, Any],
    env: Mapping[str, str],
    table: Mapping[str, Any],
    overrides: Mapping[str, Any],
    file: Path,
) -> tuple[Any, str] | None:
    """The value that counts and where it stands, or None for the default. Empty variables are not set."""
    if overrides.get(name) is not None:
        return overrides[name], "argument"
    if not metadata["file_only"]:
        for variable in _variables(name, metadata["also"]):
            if env.get(variable, "").strip():
                return env[variable].strip(), f"environment {variable}"
    if name in table and not metadata["environment_only"]:
        return table[name], str(file)
    return None


def _parsed(name: str, metadata: Mapping[str, Any], value: Any, origin: str, warnings: list[str]) -> Any:
    try:
        return metadata["kind"](value)
    except kinds.Doubtful as exc:
        warnings.append(f"{name} ({origin}): {exc}")
        return exc.value
    except ValueError as exc:
        shown = MASK if metadata["secret"] else repr(_masked(value))[:80]
        raise InvalidInput(f"{name} = {shown} ({origin}) cannot be used: {exc}") from exc


def _masked(value: Any) -> Any:
    """A value of a free table with what looks like a secret masked."""
    if isinstance(value, Mapping):
        return {k: MASK if _SECRET_NAME.search(k) and v else _masked(v) for k, v in value.items()}
    return [_masked(inner) for inner in value] if isinstance(value, list) else value


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""

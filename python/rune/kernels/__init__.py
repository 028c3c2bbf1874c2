"""Estimates, admission, digests and the ledger: native where built, the pure twin elsewhere, with identical results.

``RUNE_BACKEND=auto`` (the default) takes the native module when it is there, ``rust`` insists on it, ``python`` takes the twin.
``BACKEND`` says which one runs, ``BACKEND_REASON`` why. ``pure`` and ``native`` (None where it cannot be used) are both at hand.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rune.errors import BackendError
from rune.kernels.estimator_like import EstimatorLike

if TYPE_CHECKING:
    from rune.kernels import pure
    from rune.kernels.pure import (
        ESTIMATOR_NAMES,
        Admission,
        Estimator,
        Ledger,
        Turns,
        admit,
        chars4,
        chars4_many,
        digest,
        digest_many,
        get_estimator,
    )

__all__ = [
    "BACKEND",
    "BACKEND_REASON",
    "ESTIMATOR_NAMES",
    "Admission",
    "Estimator",
    "EstimatorLike",
    "Ledger",
    "Turns",
    "admit",
    "chars4",
    "chars4_many",
    "digest",
    "digest_many",
    "get_estimator",
    "native",
    "pure",
]

_OF_BACKENDS = (
    "ESTIMATOR_NAMES",
    "Admission",
    "Estimator",
    "Ledger",
    "Turns",
    "admit",
    "chars4",
    "chars4_many",
    "digest",
    "digest_many",
    "get_estimator",
)


def _load_native() -> tuple[ModuleType | None, str]:
    """The native module, or None and why not."""
    try:
        found = importlib.import_module("rune._native")
    except ImportError as error:
        return None, f"the native kernels cannot be loaded: {error}"
    missing = [name for name in _OF_BACKENDS if not hasattr(found, name)]
    if missing:
        return None, f"the native kernels are of another version (without {', '.join(missing)}): build them again"
    return found, ""


def _choose() -> tuple[ModuleType, str, str]:
    """The module that runs, its name, and why it was taken."""
    asked = os.environ.get("RUNE_BACKEND", "").strip().lower() or "auto"
    if asked not in ("auto", "rust", "python"):
        raise BackendError(f"RUNE_BACKEND={asked!r} is not one of auto, rust, python")
    if native is not None and asked != "python":
        return native, "rust", "RUNE_BACKEND=rust asks for it" if asked == "rust" else "the native kernels are there"
    if asked == "rust":
        raise BackendError(
            f"RUNE_BACKEND=rust, but {_native_fault}; install a wheel that has them, or unset RUNE_BACKEND"
        )
    twin = importlib.import_module("rune.kernels.pure")
    return twin, "python", "RUNE_BACKEND=python asks for it" if asked == "python" else _native_fault


def __getattr__(name: str) -> Any:
    # The twin takes a while to load; where the native module runs, only those who ask for it pay for that.
    if name == "pure":
        return importlib.import_module("rune.kernels.pure")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


native, _native_fault = _load_native()
_chosen, BACKEND, BACKEND_REASON = _choose()
if not TYPE_CHECKING:
    globals().update({name: getattr(_chosen, name) for name in _OF_BACKENDS})

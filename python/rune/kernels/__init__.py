"""Estimates, admission, digests and the ledger: native where built, the pure twin elsewhere, with identical results.

``RUNE_BACKEND=auto`` (the default) takes the native module when it is there, ``rust`` insists on it, ``python`` takes the twin.
``BACKEND`` says which one runs, ``BACKEND_REASON`` why. ``pure`` and ``native`` (None where it cannot be used) are both at hand.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

from rune.errors import BackendError
from rune.kernels import pure
from rune.kernels.pure_estimate import EstimatorLike

__all__ = [
    "BACKEND",
    "BACKEND_REASON",
    "ESTIMATOR_NAMES",
    "Admission",
    "Estimator",
    "EstimatorLike",
    "Ledger",
    "admit",
    "chars4",
    "chars4_many",
    "digest",
    "digest_many",
    "get_estimator",
    "native",
    "pure",
]


def _load_native() -> tuple[ModuleType | None, str]:
    """The native module, or None and why not."""
    try:
        found = importlib.import_module("rune._native")
    except ImportError as error:
        return None, f"the native kernels cannot be loaded: {error}"
    missing = [name for name in pure.__all__ if not hasattr(found, name)]
    if missing:
        return None, f"the native kernels are of another version (without {', '.join(missing)}): build them again"
    return found, ""


def _choose() -> tuple[ModuleType, str, str]:
    """The module that runs, its name, and why it was taken."""
    asked = os.environ.get("RUNE_BACKEND", "").strip().lower() or "auto"
    if asked not in ("auto", "rust", "python"):
        raise BackendError(f"RUNE_BACKEND={asked!r} is not one of auto, rust, python")
    if asked == "python":
        return pure, "python", "RUNE_BACKEND=python asks for it"
    if native is not None:
        return native, "rust", "RUNE_BACKEND=rust asks for it" if asked == "rust" else "the native kernels are there"
    if asked == "rust":
        raise BackendError(
            f"RUNE_BACKEND=rust, but {_native_fault}; install a wheel that has them, or unset RUNE_BACKEND"
        )
    return pure, "python", _native_fault


native, _native_fault = _load_native()
_chosen, BACKEND, BACKEND_REASON = _choose()

if TYPE_CHECKING:
    from rune.kernels.pure import (
        ESTIMATOR_NAMES,
        Admission,
        Estimator,
        Ledger,
        admit,
        chars4,
        chars4_many,
        digest,
        digest_many,
        get_estimator,
    )
else:
    ESTIMATOR_NAMES = _chosen.ESTIMATOR_NAMES
    Admission = _chosen.Admission
    Estimator = _chosen.Estimator
    Ledger = _chosen.Ledger
    admit = _chosen.admit
    chars4 = _chosen.chars4
    chars4_many = _chosen.chars4_many
    digest = _chosen.digest
    digest_many = _chosen.digest_many
    get_estimator = _chosen.get_estimator

"""What counts as an estimator."""

from __future__ import annotations

from typing import Protocol

__all__ = ["EstimatorLike"]


class EstimatorLike(Protocol):
    """What a ledger needs of an estimator; anything with these two will do as a column."""

    @property
    def key(self) -> str: ...

    def many(self, texts: list[str], /) -> list[int]: ...

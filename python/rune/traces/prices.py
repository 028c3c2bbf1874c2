"""What a run cost: the user's own prices per model, and no invented ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rune.settings import Settings

__all__ = ["LOCAL_UNPRICED", "PRICE_MAP", "REMOTE_UNPRICED", "Price", "cost_of", "price_for", "price_of_calls"]

LOCAL_UNPRICED = "local-unpriced"
REMOTE_UNPRICED = "remote-unpriced"
PRICE_MAP = "price-map"

_PER = 1_000_000
_LATEST = ":latest"


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens of prompt (``input``) and reply (``output``); ``source`` says where they stand."""

    model: str
    input: float
    output: float
    source: str = "config.toml"

    def cost(self, prompt_tokens: int, output_tokens: int) -> float:
        """USD for so many tokens."""
        return (prompt_tokens * self.input + output_tokens * self.output) / _PER


def price_for(model: str, settings: Settings | None = None) -> Price | None:
    """The price of a model from ``[prices."model"]`` of config.toml; None when the user gave none.

    A name without a tag and the same with ``:latest`` are one model. ``settings``: those of the environment when None, which
    may raise InvalidInput.
    """
    prices = (Settings.load() if settings is None else settings).prices
    twin = model.removesuffix(_LATEST) if model.endswith(_LATEST) else model + _LATEST
    for name in (model, twin):
        if name in prices:
            return Price(name, float(prices[name]["input"]), float(prices[name]["output"]))
    return None


def price_of_calls(
    calls: Iterable[tuple[str, int | None, int | None]], model: str, settings: Settings | None = None
) -> Price | None:
    """The price of a run whose calls, as (model, prompt tokens, reply tokens), were answered by several models.

    It is such that the run's sums cost what its calls cost one by one; of one model it is that model's. None when a model
    that answered has no price. ``model`` is the run's, for one without an answer. Raises as ``price_for``.
    """
    calls = list(calls)
    names = list(dict.fromkeys(name for name, _, _ in calls)) or [model]
    prices = {name: price_for(name, settings) for name in names}
    if len(names) == 1:
        return prices[names[0]]
    found = [(prices[name], prompt or 0, output or 0) for name, prompt, output in calls]
    if any(price is None for price, _, _ in found):
        return None
    prompts, outputs = sum(prompt for _, prompt, _ in found), sum(output for _, _, output in found)
    return Price(
        " + ".join(names),
        sum(price.input * prompt for price, prompt, _ in found if price) / (prompts or 1),
        sum(price.output * output for price, _, output in found if price) / (outputs or 1),
    )


def cost_of(
    price: Price | None, *, calls: int, prompt_tokens: int, output_tokens: int, remote: bool = False
) -> tuple[float | None, str]:
    """USD and what they rest on. None without a price, and where the server did not count the prompt (0 is unknown)."""
    if price is None:
        return None, REMOTE_UNPRICED if remote else LOCAL_UNPRICED
    if calls > 0 and prompt_tokens == 0:
        return None, PRICE_MAP
    return price.cost(prompt_tokens, output_tokens), PRICE_MAP

"""What ``rune doctor`` says of the router: which model runs what, and whether the server has the models of the tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rune.errors import RuneError

if TYPE_CHECKING:
    from rune.runtime.router import Tier
    from rune.settings import Settings

__all__ = ["router_checks"]

Check = dict[str, Any]


def router_checks(settings: Settings) -> list[Check]:
    """One check of the router, and one for each tier whose model the server does not have."""
    from rune.runtime.router import FAMILIES, Route, route_of_family, tiers_of

    tiers = tiers_of(settings.tiers)
    if settings.model and len(tiers) > 1:
        says = f"the model {settings.model} ({settings.origin('model')}) is named, so the tiers are not looked at"
        return [{"check": "router", "ok": None, "says": says, "mode": "explicit"}]
    if len(tiers) < 2 or settings.model:
        model = settings.model or (tiers[0].model if tiers else "the first that the engine offers")
        return [{"check": "router", "ok": True, "says": f"one model: {model}", "mode": "single"}]
    begins: dict[str, list[str]] = {tier.name: [] for tier in tiers}
    for family in FAMILIES:
        found: Route = route_of_family(family, "", tiers)
        begins[found.tiers[found.start].name].append(family)
    says = " → ".join(f"{tier.name} = {tier.model} ({', '.join(begins[tier.name]) or 'none'})" for tier in tiers)
    check = {"check": "router", "ok": True, "says": f"{says}; in brackets what begins there", "mode": "tiered"}
    check["tiers"] = [{"name": tier.name, "model": tier.model, "families": begins[tier.name]} for tier in tiers]
    return [check, *_missing(settings, tiers)]


def _missing(settings: Settings, tiers: tuple[Tier, ...]) -> list[Check]:
    from dataclasses import replace

    from rune.engines import open_transport

    try:
        transport, _ = open_transport(replace(settings, connect_timeout_s=1.0), model=tiers[0].model)
        try:
            names = {listing.name for listing in transport.models()}
        finally:
            transport.close()
    except RuneError as exc:
        return [{"check": f"tier {tiers[0].name}", "ok": False, "says": str(exc)}]
    return [
        {"check": f"tier {tier.name}", "ok": False, "says": f"the server has no model {tier.model!r}"}
        for tier in tiers
        if not names & {tier.model, f"{tier.model}:latest"}
    ]

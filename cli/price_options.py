"""Options by which a command names one price of the catalog."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Annotated

import typer

from jobs.audit.period import instant
from metering.price_models import PricedModel

KeyOption = Annotated[str, typer.Option(help="Plan, model, meter and currency together name the price.")]
"""The plan, meter or currency of the price."""


def model_key(text: str) -> str:
    """The model of a price as the catalog has it: a list may be written as in a catalog file, `[gpt-4o-*, o3]`."""
    if not text.startswith("["):
        return text
    with suppress(ValueError):
        if (priced := PricedModel.parse(text)).is_group:
            return priced.text
    try:
        return _listed(text)
    except ValueError:
        return text


def _listed(text: str) -> str:
    from catalog.exact_text import read_as_text

    names, _, conditions = text.partition("]")
    (models,) = read_as_text(f"- {names}]")
    (of,) = read_as_text(f"- {conditions.strip() or '{}'}")
    if not isinstance(of, dict) or not all(isinstance(name, str) for name in models):
        raise ValueError("only conditions may follow it")
    return PricedModel.group(models, of).text


ModelKeyOption = Annotated[
    str,
    typer.Option(parser=model_key, metavar="TEXT", help="Plan, model, meter and currency together name the price."),
]
"""The model of the price."""
EffectiveFromOption = Annotated[
    datetime,
    typer.Option("--effective-from", parser=instant, metavar="INSTANT", help="When the price begins (RFC 3339)."),
]

"""Options by which a command names one price of the catalog."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from jobs.audit.period import instant

KeyOption = Annotated[str, typer.Option(help="Plan, model, meter and currency together name the price.")]
"""The plan, model, meter or currency of the price."""
EffectiveFromOption = Annotated[
    datetime,
    typer.Option("--effective-from", parser=instant, metavar="INSTANT", help="When the price begins (RFC 3339)."),
]

"""Options by which a command names one price of the catalog."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from jobs.audit.period import instant

KeyOption = Annotated[
    str, typer.Option(help="Names the price, together with the others of plan, model, meter and currency.")
]
"""The plan, model, meter or currency of the price."""
EffectiveFromOption = Annotated[
    datetime,
    typer.Option("--effective-from", parser=instant, metavar="INSTANT", help="When the price begins (RFC 3339)."),
]

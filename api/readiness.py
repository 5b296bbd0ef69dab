"""Whether this server can take requests: by it Kubernetes sends it some, and Prometheus sees that none is ready."""

from __future__ import annotations

import asyncio

from api.events import Services
from monitoring import metrics

REPORT_EVERY_SECONDS = 1.0


def waits_for(services: Services) -> list[str]:
    """What must answer first: `database`, `ingestion`; empty where it is ready."""
    waits = []
    if not services.database.is_fresh:
        waits.append("database")
    if not services.validator.is_ready:
        waits.append("ingestion")
    return waits


async def keep_reporting(services: Services) -> None:
    """As a metric, until cancelled: nobody sends requests to a server that is not ready, so none of them fails."""
    while True:
        metrics.API_READY.set(not waits_for(services))
        await asyncio.sleep(REPORT_EVERY_SECONDS)

"""Every metric, declared once: kind, name, unit, labels with their closed sets of values, and which programs expose it.

Counters start at 0 with all their label sets, so that their first increase is seen. Gauges appear when they are first
set: after a restart an unknown lag must not read as no lag. Totals that must agree with the database are gauges that
are read from it.
"""

from __future__ import annotations

from monitoring.instruments import Metric
from monitoring.metrics import api, audit, billing, drivers, ingestion, joins, sessionization, views, webhooks
from monitoring.metrics.api import *  # noqa: F403  # every metric of every area is found here
from monitoring.metrics.audit import *  # noqa: F403
from monitoring.metrics.billing import *  # noqa: F403
from monitoring.metrics.drivers import *  # noqa: F403
from monitoring.metrics.ingestion import *  # noqa: F403
from monitoring.metrics.joins import *  # noqa: F403
from monitoring.metrics.labels import *  # noqa: F403
from monitoring.metrics.sessionization import *  # noqa: F403
from monitoring.metrics.views import *  # noqa: F403
from monitoring.metrics.webhooks import *  # noqa: F403

AREAS = (drivers, ingestion, sessionization, joins, billing, webhooks, audit, views, api)
METRICS: tuple[Metric, ...] = tuple(
    value for area in AREAS for value in vars(area).values() if isinstance(value, Metric)
)

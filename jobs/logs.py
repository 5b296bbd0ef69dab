"""The logs of a job: lines for a terminal, or one JSON object a line for the collector of a cluster."""

from __future__ import annotations

import sys

import structlog


def log_for_people() -> None:
    """For a terminal; a traceback is without local variables: they may hold a password, an API key or an event."""
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stdout.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])


def log_as_json() -> None:
    """One object a line, as a cluster's log collector wants it."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,  # without local variables: they may hold a password
            structlog.processors.JSONRenderer(default=str),
        ]
    )

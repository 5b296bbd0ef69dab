"""The closed sets of label values."""

from __future__ import annotations

from metering.vocabulary import Job

TOPIC_SETTINGS = ("max.message.bytes", "retention", "replication", "min.insync.replicas")
MAX_NEW_SOURCES = 1_000
"""New sources that are listed in an hour."""
GIVEN_AT_START = None

JOB = {"job": tuple(Job)}
API = "api"
"""The program that takes events over HTTP; it is no job."""
PROGRAMS = (*Job, API)
"""What exposes metrics."""

"""The closed sets of label values."""

from __future__ import annotations

JOBS = ("ingestion", "sessionization", "joins", "billing")
DISPOSITIONS = ("accepted", "rejected", "duplicate", "conflict")
JOIN_OUTCOMES = ("matched", "abandoned", "orphaned", "superseded")
METERS = ("requests", "input_tokens", "output_tokens", "cached_tokens")
DECISIONS = ("correct", "drop")
SESSION_CHANGES = ("begun", "extended", "absorbed", "retracted")
WINDOW_STATES = ("open", "closing", "closed", "corrected")
SOURCE_STATES = ("active", "silent")
EXITS = ("crashed", "refused", "fenced")
TOPIC_SETTINGS = ("max.message.bytes", "retention", "replication", "min.insync.replicas")
ISOLATIONS = ("too_large", "unreadable", "skipped")
CAUSES = ("kafka", "database", "store", "broker_clock", "memory")
MOST_NEW_SOURCES = 1_000
"""New sources that are listed in an hour."""
GIVEN_AT_START = None

JOB = {"job": JOBS}

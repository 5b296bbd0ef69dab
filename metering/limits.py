"""Limits that an event, the catalog and a table share."""

from __future__ import annotations

MAX_NAME_BYTES = 512
"""Of a name, in UTF-8. A longer one would not fit a Postgres index (2,704 bytes for a whole key), and one bad event or
change of the catalog would stop a job."""
MAX_TAGS = 50
MAX_TAG_NAME_BYTES = 64
MAX_TAG_BYTES = 256
"""Of an account's tags: how many, and of each its name and its text."""
LIMIT_PERIODS = {"P1D": "day", "P1M": "month"}
"""Of limits on usage, of the account's calendar, each with its word for people."""
MAX_MULTIPLES = 100
"""Of a limit that recurs: how many of its thresholds one period has. A quantity sent in a wrong unit, or a step of one
token, would call somebody a million times."""
PLAIN_NAME = r"[a-z][a-z0-9_]{0,62}"
"""Of a column, a meter, a unit: what people declare, and what every database and label takes as it is."""

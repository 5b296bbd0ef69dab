"""What is counted and priced."""

from __future__ import annotations

from enum import StrEnum


class Meter(StrEnum):
    """What is counted and priced. The value is also the quantity's column in `usage`."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    CACHED_TOKENS = "cached_tokens"

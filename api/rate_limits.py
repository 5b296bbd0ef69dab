"""Rate limits of a key: a token bucket for its requests, and one for its events, in this server alone.

A bucket is two numbers, however much a key sends. It holds what the key may send within its window, is full when the
key is first seen, and fills evenly. A batch that is larger than the bucket is taken when that is full, and the key
waits for longer afterwards: refused for good, its events would be lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import structlog

from api.problems import too_many
from metering.api_keys import DEFAULT_LIMITS, ApiKey, RateLimits
from metering.instants import Clock
from monitoring.metrics import Refusal

log = structlog.get_logger()

SECOND_NS = 1_000_000_000
LOG_EVERY_SECONDS = 60
MANY_BUCKETS = 1_024
"""With so many the full ones are dropped, each of which is as good as none."""
WINDOW_SECONDS = {Refusal.REQUEST_RATE: 1, Refusal.EVENT_RATE: 60}


@dataclass
class TokenBucket:
    """`quota` units within `window_ns`. In integers, so that a wait that was announced is long enough."""

    quota: int
    window_ns: int
    filled_at_ns: int
    _missing: int = 0
    """How many units are missing, times `window_ns`; more than the quota after a batch that was larger."""

    def take(self, count: int, now_ns: int) -> int:
        """Take `count` units: 0; or none, and the nanoseconds after which they could be taken."""
        self._fill(now_ns)
        spare = self.quota - min(count, self.quota)
        wait_ns = -((spare * self.window_ns - self._missing) // self.quota)
        if wait_ns > 0:
            return wait_ns
        self._missing += count * self.window_ns
        return 0

    def remaining(self, now_ns: int) -> int:
        """Whole units that are there."""
        self._fill(now_ns)
        return max(0, self.quota - -(-self._missing // self.window_ns))

    def full_in_ns(self, now_ns: int) -> int:
        """The time until it is full."""
        self._fill(now_ns)
        return -(-self._missing // self.quota)

    def _fill(self, now_ns: int) -> None:
        self._missing = max(0, self._missing - self.quota * (now_ns - self.filled_at_ns))
        self.filled_at_ns = now_ns


class RateLimiter:
    """The buckets of all keys, for the event loop's thread alone; `default` is for keys without limits of their own."""

    def __init__(self, clock: Clock, default: RateLimits = DEFAULT_LIMITS) -> None:
        self._clock = clock
        self._default = default
        self._buckets: dict[tuple[str, Refusal], TokenBucket] = {}
        self._drop_full_at = MANY_BUCKETS
        self._logged_at: dict[str, float] = {}

    def take_request(self, key: ApiKey) -> None:
        """Raises Problem (429) where the key has sent too many requests."""
        self._take(key, Refusal.REQUEST_RATE, key.limits.or_default(self._default).requests_per_second, 1)

    def take_events(self, key: ApiKey, count: int) -> None:
        """Raises Problem (429) where the key has sent too many events for these as well."""
        self._take(key, Refusal.EVENT_RATE, key.limits.or_default(self._default).events_per_minute, count)

    @property
    def buckets(self) -> int:
        """How many are in memory."""
        return len(self._buckets)

    def _take(self, key: ApiKey, limit: Refusal, quota: int | None, count: int) -> None:
        if not quota:
            return
        now_ns = int(self._clock.monotonic() * SECOND_NS)
        bucket = self._bucket(key.id, limit, quota, now_ns)
        wait_ns = bucket.take(count, now_ns)
        if wait_ns:
            self._log(key.id, limit, quota)
            unit = limit.replace("_per_", " a ")
            raise too_many(
                limit,
                f"The key {key.id} may send {quota} {unit} to each server: send the same request again after"
                f" {_seconds(wait_ns)} s.",
                _seconds(wait_ns),
                self._headers(limit, bucket, now_ns, wait_ns),
            )

    def _bucket(self, key_id: str, limit: Refusal, quota: int, now_ns: int) -> TokenBucket:
        """The key's bucket; a new one where its limit is another one now."""
        found = self._buckets.get((key_id, limit))
        if found is None or found.quota != quota:
            self._drop_full(now_ns)
            found = TokenBucket(quota, WINDOW_SECONDS[limit] * SECOND_NS, now_ns)
            self._buckets[key_id, limit] = found
        return found

    def _drop_full(self, now_ns: int) -> None:
        if len(self._buckets) >= self._drop_full_at:
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.full_in_ns(now_ns)}
            self._drop_full_at = max(MANY_BUCKETS, 2 * len(self._buckets))

    def _headers(self, limit: Refusal, bucket: TokenBucket, now_ns: int, wait_ns: int) -> dict[str, str]:
        """Those of OpenMeter, whose `Reset` is a Unix time, and those of the IETF's draft."""
        remaining, window = bucket.remaining(now_ns), WINDOW_SECONDS[limit]
        reset = math.ceil(self._clock.now().timestamp() + wait_ns / SECOND_NS)
        return {
            "X-RateLimit-Limit": str(bucket.quota),
            "X-RateLimit-Remaining": str(remaining),
            "X-RateLimit-Reset": str(reset),
            "RateLimit-Policy": f'"{limit}";q={bucket.quota};w={window}',
            "RateLimit": f'"{limit}";r={remaining};t={_seconds(wait_ns)}',
        }

    def _log(self, key_id: str, limit: Refusal, quota: int) -> None:
        """Names the key, which no metric does; once a minute at most, whoever it is."""
        now = self._clock.monotonic()
        self._logged_at = {name: at for name, at in self._logged_at.items() if now - at < LOG_EVERY_SECONDS}
        if key_id not in self._logged_at:
            self._logged_at[key_id] = now
            log.warning("a key is over its rate limit", key=key_id, limit=limit.value, quota=quota)


def _seconds(nanos: int) -> int:
    return -(-nanos // SECOND_NS)

"""The versions of the keys that batches ask for: the cost of pricing does not grow with all other versions.

`Versions` decides which version applies. This only finds, by a hash of the key, the versions that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import polars as pl
import pyarrow as pa

from jobs.joins.catalog_versions import Versions, priced_models
from metering.price_models import PricedModels

MAX_IDLE_KEYS = 50_000
"""How many unused keys stay indexed, or four times as many as a batch uses."""
MAX_PARTS = 64
"""How many additions are merged into one table: a look-up goes through each."""


class VersionsInUse:
    """Every version of one kind, by key; prices like `Versions` for the keys in use."""

    def __init__(
        self,
        every: pa.Table,
        key: Iterable[str],
        versions: Callable[[pa.Table], Versions],
        max_idle: int = MAX_IDLE_KEYS,
    ) -> None:
        """`versions` makes those of some rows of `every` ready; `key` is what they are versions of."""
        self._key = list(key)
        self._versions = versions
        self._max_idle = max_idle
        self._every = every
        self._hashes = self._hashed(pl.DataFrame(every.select(self._key)))
        self._held = self._hashes.clear()
        self._in_use = versions(every.slice(0, 0))
        self._priced_models: PricedModels | None = None

    @property
    def every(self) -> pa.Table:
        """Every version."""
        return self._every

    @property
    def values(self) -> tuple[str, ...]:
        """As of `Versions`."""
        return self._in_use.values

    @property
    def priced_models(self) -> PricedModels:
        """As of `Versions`, among every version."""
        if self._priced_models is None:
            self._priced_models = priced_models(self._every["model"])
        return self._priced_models

    def as_of(self, rows: pl.DataFrame, seen_from: int | None = None) -> pl.DataFrame:
        """As `Versions.as_of`, which it calls."""
        self._hold(self._hashed(rows).unique())
        return self._in_use.as_of(rows, seen_from)

    def have(self, keys: pl.DataFrame) -> pl.Series:
        """As `Versions.have`."""
        self._hold(self._hashed(keys).unique())
        return self._in_use.have(keys)

    def of(self, rows: pa.Table) -> pa.Table:
        """All versions of the keys of `rows`, and perhaps of some others."""
        return self._found(self._hashed(pl.DataFrame(rows.select(self._key))))

    def add(self, rows: pa.Table) -> None:
        """Take further versions; of keys that are not in use nothing is made ready."""
        hashes = self._hashed(pl.DataFrame(rows.select(self._key)))
        self._every = pa.concat_tables([self._every, rows])
        if "model" in self._key:
            found = self.priced_models.every | priced_models(rows["model"]).every
            self._priced_models = PricedModels(found)
        if self._every["lsn"].num_chunks > MAX_PARTS:
            self._every = self._every.combine_chunks()
        self._hashes = pl.concat([self._hashes, hashes], rechunk=True)
        if hashes.is_in(self._held.implode()).any():
            self._in_use = self._versions(self._found(self._held))

    def _hold(self, hashes: pl.Series) -> None:
        if hashes.is_in(self._held.implode()).all():
            return
        together = pl.concat([self._held, hashes]).unique()
        # Cached versions cost each batch a little, so keys that were used long ago are dropped.
        self._held = together if len(together) <= max(self._max_idle, 4 * len(hashes)) else hashes
        self._in_use = self._versions(self._found(self._held))

    def _found(self, hashes: pl.Series) -> pa.Table:
        return self._every.filter(self._hashes.is_in(hashes.implode()).to_arrow())

    def _hashed(self, rows: pl.DataFrame) -> pl.Series:
        """The same for a key every time; two keys may share it, which only caches one more."""
        parts = [pl.col(name).cast(pl.String).hash(number) for number, name in enumerate(self._key, start=1)]
        hashed = parts[0]
        for part in parts[1:]:
            hashed = hashed ^ part
        return rows.select(hashed.alias("key_hash"))["key_hash"]

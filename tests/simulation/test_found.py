"""Short histories, each of which showed a fault while its mend was taken out (`mends`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.kept import read
from tests.simulation.mends import FOUND, MENDS
from tests.simulation.simulate import simulate


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("kept", sorted(FOUND.glob("*.txt")), ids=lambda kept: kept.stem)
def test_a_history_that_showed_a_fault_ends_as_it_must(histories: str, kept: Path) -> None:
    ended = simulate(histories, *read(kept))
    assert not ended.broken, str(ended)


def test_every_history_that_is_kept_belongs_to_a_mend() -> None:
    assert {mend.name for mend in MENDS} >= {kept.stem for kept in FOUND.glob("*.txt")} != set()

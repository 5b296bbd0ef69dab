"""How soon the driver looks at its topic again: sooner while events come, as long as that costs little."""

from __future__ import annotations

from dataclasses import dataclass

BUDGET = 0.035
"""Of a core: what looking sooner than usual may cost ingestion more. joins and billing follow each of its commits, and
together use about twice as much for that: so the tenth of a core that all may cost is for all of them."""


@dataclass(frozen=True)
class LookInterval:
    """Seconds from one look to the next, each with the batch that it finds.

    `usual` where no event came, and `shortest` where any did, if the batches cost little.
    """

    usual: float
    shortest: float

    def after(self, cpu_seconds: float, *, has_events: bool) -> float:
        """Seconds until the next look, after one that cost so much with all that followed from it.

        Looks every x seconds instead of every `usual` ones cost cpu_seconds * (1/x - 1/usual) of a core more, which is
        BUDGET at most.
        """
        if not has_events or self.shortest >= self.usual:
            return self.usual
        affordable = cpu_seconds / (BUDGET + cpu_seconds / self.usual)
        return min(self.usual, max(self.shortest, affordable))

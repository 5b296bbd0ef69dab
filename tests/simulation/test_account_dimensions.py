"""Usage kept by what its account was, through the shipped applications and audits (and in every seventh history)."""

from __future__ import annotations

from decimal import Decimal
from functools import partial

import psycopg
import pytest

from tests.simulation.applications import JOBS
from tests.simulation.calls import Fault
from tests.simulation.dimensions import NAMED, Tell
from tests.simulation.simulate import simulate
from tests.simulation.steps import ENOUGH, Audit, Configure, Pass, Publish, Run, Send, Step

ALL = (0, 1, 2, 3)
ROUND: list[Step] = [Run(job, ENOUGH, Fault.FREEZE) for job in JOBS]
PRICED: list[Step] = [
    Publish("output_tokens", 0, "EUR", 5, -90_000),
    Publish("output_tokens", 1, "EUR", 9, -90_000),
]


DAYS = """
    SELECT dimensions ->> 'account.plan', dimensions ->> 'account.tags.team', dimensions ->> 'account.parent',
           unit_price, sum(quantity)
    FROM usage_days WHERE meter = 'output_tokens' GROUP BY 1, 2, 3, 4 HAVING sum(quantity) <> 0
"""
DEAR = Decimal("0.0000091")


def seen(*steps: Step) -> list[Step]:
    """They happen, and every application sees it."""
    return [*steps, Pass(1, ALL), *ROUND]


@pytest.mark.long
def test_usage_keeps_its_team_when_the_account_moves(histories: str) -> None:
    """A late tag moves nothing; a late plan moves the money, and not the name under which it stands."""
    usage = partial(Send, 0, "usage", 0, ago_s=0, tokens=7)
    wait: list[Step] = [Pass(700, ALL), *ROUND]
    steps: list[Step] = [
        *PRICED,
        Configure("joins", "dimensions", NAMED),
        # Nobody knows the account.
        *seen(usage(request=1)),
        *seen(Tell(0, 0, {"team": "red"}, -90_000, "a1")),
        *seen(usage(request=2)),
        # From now on; what occurred before says what was then, also if it comes now.
        *seen(Pass(10, ALL), Tell(0, 0, {"team": "blue"}, 0)),
        *seen(usage(request=8), usage(request=4, ago_s=100)),
        Run("joins", 0, Fault.CRASH),
        # For the past: first the team, then the plan, which is dearer. Each time an audit looks.
        *seen(Tell(0, 0, {"team": "green"}, -80_000)),
        *seen(Audit()),
        *seen(Tell(0, 1, {"team": "grey"}, -80_000)),
        *seen(Audit()),
        Audit(),
        # Given up, and then one pair: by what was known when its completion came.
        Send(0, "request", 0, 5, 0, 7),
        *(wait * 2),
        Tell(0, 1, {}, -80_000),
        Send(0, "completion", 0, 5, 0, 7),
        *(wait * 2),
        *seen(Audit()),
    ]
    outcome = simulate(histories, 1, 1, steps)
    assert not outcome.broken, str(outcome)
    with psycopg.connect(histories) as connection:
        found = {tuple(row[:3]): row[3:] for row in connection.execute(DAYS).fetchall()}
    assert found == {
        (None, None, None): (DEAR, 1),
        ("p0", "red", "a1"): (DEAR, 2 + 4),
        ("p0", "blue", None): (DEAR, 8),
        ("p1", None, None): (DEAR, 5),
    }

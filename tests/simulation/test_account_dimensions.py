"""Usage kept by what its account was, through the shipped applications and audits (and in every seventh history)."""

from __future__ import annotations

from decimal import Decimal

import psycopg

from tests.simulation.applications import JOBS
from tests.simulation.calls import Fault
from tests.simulation.dimensions import NAMED, Tell
from tests.simulation.simulate import simulate
from tests.simulation.steps import ENOUGH, Audit, Configure, Pass, Publish, Run, Send, Step

ALL = (0, 1, 2, 3)
ROUND: list[Step] = [Run(job, ENOUGH, Fault.FREEZE) for job in JOBS]
TOLD: list[Step] = [Pass(1, ALL), *ROUND]
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


def test_what_was_put_under_a_team_stays_there_whatever_is_told_of_the_account_later(histories: str) -> None:
    """A late tag moves nothing; a late plan moves the money, and not the name under which it stands."""
    steps: list[Step] = [
        *PRICED,
        Configure("joins", "dimensions", NAMED),
        # Nobody knows the account.
        *(Send(0, "usage", 0, 1, 0, 7), *TOLD),
        *(Tell(0, 0, {"team": "red"}, -90_000, "a1"), *TOLD),
        *(Send(0, "usage", 0, 2, 0, 7), *TOLD),
        # From now on; what occurred before says what was then, also if it comes now.
        *(Pass(10, ALL), Tell(0, 0, {"team": "blue"}, 0), *TOLD),
        *(Send(0, "usage", 0, 8, 0, 7), Send(0, "usage", 0, 4, 100, 7), *TOLD),
        Run("joins", 0, Fault.CRASH),
        # For the past: first the team, then the plan, which is dearer. Each time an audit looks.
        *(Tell(0, 0, {"team": "green"}, -80_000), *TOLD, Audit(), *TOLD),
        *(Tell(0, 1, {"team": "grey"}, -80_000), *TOLD, Audit(), *TOLD, Audit()),
        # Given up, and then one pair: by what was known when its completion came.
        *(Send(0, "request", 0, 5, 0, 7), Pass(700, ALL), *ROUND, Pass(700, ALL), *ROUND),
        *(Tell(0, 1, {}, -80_000), Send(0, "completion", 0, 5, 0, 7), Pass(1_400, ALL), *ROUND, Pass(1_400, ALL)),
        *(*ROUND, Audit(), *TOLD),
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

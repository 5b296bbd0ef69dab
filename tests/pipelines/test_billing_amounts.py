"""What billing adds up: to the last digit, never across currencies or prices, and however much it becomes."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow.compute as pc
import pytest

from jobs.billing.config import BillingConfig
from jobs.billing.staged import STAGED
from jobs.runtime.errors import Refused
from metering.meters import Meter
from metering.vocabulary import LatePolicy, Outcome
from metering.windows import MINUTE
from monitoring import metrics
from tests.pipelines.billing import EXACT, NOON, Billed, Price, bill, built, stored, usage_row


def test_what_build_returns_is_the_staged_contract() -> None:
    staged = built([usage_row(1), usage_row(2, delay=timedelta(hours=1))])
    assert staged.schema.names == STAGED.names
    requests = staged.cast(STAGED).filter(pc.field("meter") == "requests")
    assert requests["usage_lsn"].to_pylist().count(2) == 1
    assert requests.num_rows == 2, "a straggler is a row by itself"


def test_only_a_row_of_its_own_says_when_it_was() -> None:
    """No statement of the fold asks it of others, and an instant takes Postgres longer to read than a number."""
    staged = built([usage_row(1), usage_row(2, delay=timedelta(hours=1))]).cast(STAGED)
    assert {(row["usage_lsn"], row["event_time"], row["received_at"]) for row in staged.to_pylist()} == {
        (None, None, None),
        (2, NOON, NOON + timedelta(hours=1)),
    }


LARGEST = Decimal("99999999999.999999")
DEAR, CHEAPEST = Price(4, Decimal("99999999.999999999999")), Price(5, Decimal("0.000000000001"))


def test_amounts_keep_every_decimal_of_the_largest_and_smallest_quantity(
    connection: psycopg.Connection[Any],
) -> None:
    quantities = {Meter.INPUT_TOKENS: LARGEST}
    for batch in ((1, 2), (3,)):
        bill(connection, [usage_row(lsn, price=DEAR, quantities=quantities) for lsn in batch])
    bill(connection, [usage_row(9, price=CHEAPEST, quantities={Meter.INPUT_TOKENS: Decimal("0.000001")})])
    found = {key[5]: cell["amount"] for key, cell in stored(connection).windows.items() if key[5] is not None}
    assert found == {4: EXACT.multiply(3 * LARGEST, DEAR.unit_price), 5: Decimal("1E-18")}


def test_sums_of_the_largest_quantities_and_amounts_do_not_overflow(connection: psycopg.Connection[Any]) -> None:
    """A window has more than a bigint holds, and its amount more than 38 digits."""
    held = Decimal(2**63)
    with connection.transaction():
        connection.execute(
            """INSERT INTO usage_windows (account, model, meter, currency, price_version, unit_price, window_start,
                   window_end, quantity) VALUES ('acme', 'sonnet', 'input_tokens', 'EUR', 4, %s, %s, %s, %s)""",
            [DEAR.unit_price, NOON, NOON + MINUTE, held],
        )
    for batch in range(2):
        rows = [
            usage_row(200 * batch + n, price=DEAR, quantities={Meter.INPUT_TOKENS: LARGEST}, outcome=Outcome.ABANDONED)
            for n in range(1, 201)
        ]
        late = usage_row(200 * batch + 201, NOON, timedelta(hours=1), price=DEAR, quantities={Meter.REQUESTS: LARGEST})
        bill(connection, [*rows, late])
    cells = {key[3]: cell for key, cell in stored(connection).windows.items() if key[5] == 4}
    assert cells["input_tokens"]["quantity"] == EXACT.add(held, 400 * LARGEST)
    assert cells["input_tokens"]["amount"] == EXACT.multiply(EXACT.add(held, 400 * LARGEST), DEAR.unit_price)
    assert len(f"{cells['input_tokens']['amount']:f}") > 38
    assert cells["requests"]["amount"] == EXACT.multiply(2 * LARGEST, DEAR.unit_price)


def test_a_window_that_the_previous_release_left_at_zero_is_updated(connection: psycopg.Connection[Any]) -> None:
    """Such a window does not tell its unit price: migration leaves it null where no other row knows it."""
    with connection.transaction():
        connection.execute(
            """INSERT INTO usage_windows (account, model, meter, currency, price_version, window_start, window_end,
                   quantity) VALUES ('acme', 'sonnet', 'requests', 'EUR', 7, %s, %s, 0)""",
            [NOON, NOON + MINUTE],
        )
    bill(connection, [usage_row(1, outcome=Outcome.ABANDONED)])
    [cell] = stored(connection).windows.values()
    assert (cell["quantity"], cell["amount"]) == (1, Decimal("0.000003141593"))


def test_currencies_models_and_prices_are_never_summed_into_one_another(connection: psycopg.Connection[Any]) -> None:
    other = Price(8, Decimal("0.5"))
    rows = [
        usage_row(1, outcome=Outcome.ABANDONED),
        usage_row(2, outcome=Outcome.ABANDONED, currency="USD"),
        usage_row(3, outcome=Outcome.ABANDONED, model="opus"),
        usage_row(4, outcome=Outcome.ABANDONED, price=other),
        usage_row(5, outcome=Outcome.ABANDONED, price=None),
    ]
    bill(connection, rows)
    assert [cell["quantity"] for cell in stored(connection).windows.values()] == [1] * 5


def test_unpriced_units_are_those_that_no_other_meter_bills(connection: psycopg.Connection[Any]) -> None:
    """Cached tokens are input tokens, too."""
    tokens = (Meter.INPUT_TOKENS, Meter.OUTPUT_TOKENS, Meter.CACHED_TOKENS)
    reported = bill(connection, [usage_row(1, price=None, quantities=dict.fromkeys(tokens, 5))])
    assert {meter: reported[metrics.UNPRICED, meter] for meter in tokens} == dict(zip(tokens, (1, 1, 0), strict=True))
    missing = bill(connection, [usage_row(2, quantities=dict.fromkeys(tokens))])
    assert {meter: missing[metrics.UNMETERED, meter] for meter in tokens} == dict(zip(tokens, (1, 1, 0), strict=True))


def test_null_models_and_currencies_meet_in_one_window_row(connection: psycopg.Connection[Any]) -> None:
    for lsn in range(1, 4):
        orphan = usage_row(
            lsn,
            price=None,
            quantities={Meter.REQUESTS: 0, Meter.INPUT_TOKENS: 5},
            outcome=Outcome.ORPHANED,
            model=None,
            currency=None,
        )
        counts = bill(connection, [orphan])
        assert counts[metrics.UNPRICED, "input_tokens"] == 0, "nobody can price it"
        assert counts[metrics.UNMETERED, "output_tokens"] == 0
    found = stored(connection).windows
    assert list(found) == [(NOON, "acme", None, "input_tokens", None, None)]
    [cell] = found.values()
    assert (cell["quantity"], cell["amount"]) == (15, None)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"cause": "erased"}, "cause 'erased'"),
        ({"sign": 0}, "sign 0"),
        ({"sign": 2}, "sign 2"),
        ({"requests_amount": None}, "an amount with every price"),
        ({"requests_amount": Decimal("0.000003141594")}, "an amount with every price"),
        ({"requests_unit_price": None}, "an amount with every price"),
        ({"requests_unit_price": Decimal(1), "requests_amount": Decimal(1)}, "one per price version"),
        ({"requests_price_version": None}, "an amount with every price"),
    ],
)
def test_usage_that_cannot_be_added_up_is_refused_and_changes_nothing(
    connection: psycopg.Connection[Any], wrong: dict[str, Any], named: str
) -> None:
    with pytest.raises(Refused, match=named):
        bill(connection, [usage_row(1), usage_row(2, **wrong)])
    assert stored(connection) == Billed()


def test_another_unit_price_of_a_known_version_is_refused_and_changes_nothing(
    connection: psycopg.Connection[Any],
) -> None:
    bill(connection, [usage_row(1)])
    before = stored(connection)
    with pytest.raises(Refused, match="price version 7 at another unit price"):
        bill(connection, [usage_row(2, price=Price(7, Decimal("0.5")))])
    assert stored(connection) == before


def test_a_straggler_at_another_unit_price_is_refused_though_it_would_never_be_billed(
    connection: psycopg.Connection[Any],
) -> None:
    drops = BillingConfig(late_policy={Meter.REQUESTS: LatePolicy.DROP})
    bill(connection, [usage_row(1)], drops)
    before = stored(connection)
    late = usage_row(2, delay=timedelta(hours=1), price=Price(7, Decimal("0.5")))
    with pytest.raises(Refused, match="price version 7 at another unit price"):
        bill(connection, [late], drops)
    assert stored(connection) == before

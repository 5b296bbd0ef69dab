"""`weir catalog jumps` and `confirm-price`: prices 100 times above or below another, and who confirmed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from cli.author import ByOption, author
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, Row, print_rows
from cli.price_options import EffectiveFromOption, KeyOption, ModelKeyOption
from cli.reading import read_only
from jobs.queries.reading import Database, select

COLUMNS = (
    *("plan", "model", "meter", "currency", "effective_from", "unit_price", "compared_with", "other_price"),
    *("usual_request", "changed_by", "changed_at", "confirmed_by", "confirmed_at"),
)


def jump_rows(database: Database, *, is_all: bool = False) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`, the earliest first; `is_all`: also confirmed ones."""
    from catalog.price_jumps import COLUMNS as OF_A_JUMP
    from catalog.price_jumps import PriceJump

    statement = f"""
        SELECT {OF_A_JUMP}, coalesce(unit, 'unit') AS unit, changed_by, changed_at, confirmed_by, confirmed_at
        FROM catalog.price_jumps LEFT JOIN meters USING (meter) WHERE confirmed_at IS NULL OR %(is_all)s
        ORDER BY changed_at, plan, model, meter, currency, effective_from
    """
    fields = PriceJump.__dataclass_fields__
    for row in select(database, statement, {"is_all": is_all}):
        jump = PriceJump(**{name: value for name, value in row.items() if name in fields})
        yield {**row, "usual_request": jump.cost}


def jumps(
    *,
    is_all: Annotated[bool, typer.Option("--all", help="Also list confirmed prices.")] = False,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List unconfirmed prices 100 times above or below another: what they bill, and who stored them.

    `compared_with` says what `other_price` is: the price that it replaced, the one before it, that of its model
    without conditions, or the median of its meter and currency. `weir catalog confirm-price` confirms a price;
    changing or deleting it takes it off this list.
    """
    from deployment.stack import running_deployment

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(jump_rows(database, is_all=is_all), COLUMNS, form, limit)


def confirm_price(
    *,
    plan: KeyOption,
    model: ModelKeyOption,
    meter: KeyOption,
    currency: KeyOption,
    effective_from: EffectiveFromOption,
    by: ByOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Confirm a price that is 100 times above or below another, with your name: the alert PriceJump ends.

    The price is in force whether or not it is confirmed. Exit status 1 if `weir catalog jumps --all` does not list
    it.
    """
    from catalog.price_jumps import confirm
    from deployment.stack import running_deployment

    key = (plan, model, meter, currency, effective_from)
    typer.echo(confirm(running_deployment(data_dir).postgres_url, key, author(by)))

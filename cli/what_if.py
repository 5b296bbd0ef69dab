"""`weir what-if`: what other prices, another grace or another late policy would have billed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.lines import refuse_missing
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_document, print_rows
from cli.progress import telling
from deployment.errors import CannotRun, FileRefused
from jobs.audit.period import check_range, instant
from metering.digits import plain
from metering.tags import tags_text

if TYPE_CHECKING:
    import pyarrow as pa

    from jobs.replay.assumptions import Assumptions
    from jobs.replay.run import Compared
    from jobs.stack import Jobs

COLUMNS = (
    *("window_start", "account", "model", "meter", "currency"),
    *("live_quantity", "replayed_quantity", "difference_quantity"),
    *("live_amount", "replayed_amount", "difference_amount"),
    "period",
)
LIMITS_WITHOUT_EFFECT = (
    "`limits` have no effect here: they say whether an account may use more, and change no amount of a bill"
)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

From = Annotated[
    datetime,
    typer.Option("--from", parser=instant, metavar="INSTANT", help="Windows from this minute on (RFC 3339)."),
]
To = Annotated[
    datetime, typer.Option("--to", parser=instant, metavar="INSTANT", help="Windows before this minute (RFC 3339).")
]


def what_if(
    *,
    start: From,
    end: To,
    into: Annotated[str, typer.Option(metavar="SCHEMA", help="The database schema to create for the results.")],
    catalog: Annotated[
        Path | None, typer.Option("--catalog", help="Prices and accounts as `weir catalog apply` takes them.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Rules, as a file for `weir up --config`; default: those that were in force."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop the results of an earlier run in this schema.")
    ] = False,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Bill a past period with other prices or rules into a schema of its own, and list what differs.

    The result is what a live stack with these prices and rules would show after an audit. A price of --catalog
    replaces the one with the same plan, model, meter, currency and effective_from, or is added; an account replaces
    its whole history. Timeouts, grace, late policies, `hold` and meters are those of --config for the whole period.
    Manual decisions about stragglers apply where these also wait in the replay. Limits of --catalog change no amount.
    Pools are refused, both in the file and in the period.

    It lists the windows that differ, and the money of each account; JSON has both. A meter that bills a day or month
    as a whole is compared where --from and --to include all of it, and so are bills: only a whole month has tiers,
    packages, what a plan includes, and its fees. Nothing live changes.
    """
    from deployment.asking import asking_database
    from deployment.stack import running_deployment
    from jobs.replay.run import NotBilledError, Replay
    from jobs.replay.shadow import refuse_unfit_name

    check_range(start, end)
    if any(bound.second or bound.microsecond for bound in (start, end)):
        raise typer.BadParameter("--from and --to must be whole minutes, as windows are.")
    try:
        refuse_unfit_name(into)
        rules = _rules(config)
    except ValueError as refusal:
        raise FileRefused(str(refusal)) from None
    refuse_missing(catalog)
    stack = running_deployment(data_dir)
    with asking_database(stack.postgres_url), telling("Replaying:") as tell:
        assumed = _assumptions(catalog, rules, stack.postgres_url)
        replay = Replay(stack.tables, stack.postgres_url, start, end, into, assumed, replace, tell=tell)
        try:
            found = replay.run()
        except NotBilledError as error:
            raise CannotRun(str(error)) from None
    _print(found, start, end, into, form)


def _rules(config: Path | None) -> Jobs | None:
    from jobs.stack import load_stack_config

    return None if config is None else load_stack_config(config).jobs


def _assumptions(catalog: Path | None, rules: Jobs | None, postgres_url: str) -> Assumptions:
    from jobs.replay.assumptions import Assumptions

    accounts, prices = ({}, {}) if catalog is None else _versions(catalog, rules, postgres_url)
    given: dict[str, Any] = {} if rules is None else {"joins": rules.joins, "billing": rules.billing}
    return Assumptions(**accounts, **prices, **given)


# Usage of the time may be of a plan that was deleted since.
_PLANS = "SELECT plan FROM catalog.plans UNION SELECT plan FROM catalog.account_history"


def _versions(catalog: Path, rules: Jobs | None, postgres_url: str) -> tuple[dict[str, pa.Table], dict[str, pa.Table]]:
    """The catalog file as rows of the version tables. Raises FileRefused for one that cannot be replayed."""
    import pyarrow as pa

    from catalog.file import CatalogFileError, load_catalog_file
    from cli.reading import read_only
    from jobs.audit.tables.database import joins_config
    from jobs.replay.refused_prices import refused_prices
    from jobs.streams import ACCOUNTS, PRICES
    from metering.plan_terms import terms_of

    try:
        file = load_catalog_file(catalog)
    except CatalogFileError as problem:
        raise FileRefused(str(problem)) from None
    assumed = rules.joins if rules else joins_config(postgres_url)
    problems = file.undeclared_meters(set(assumed.meters)) + file.unknown_attributes(assumed.attributes)
    problems += [
        f"accounts.{number}.effective_from: leave it out: in a replay the file's account applies to all times"
        for number, row in enumerate(file.accounts)
        if row.effective_from is not None
    ]
    if file.pools:
        problems.append("pools: leave them out: a replay does not compute what accounts pay of a total that they share")
    with read_only(postgres_url) as database:
        known = {row["plan"] for row in database.execute(_PLANS).fetchall()}
        problems += file.unknown_plans(known)
        problems += refused_prices(database, [row.model_dump() for row in file.prices])
    if problems:
        raise FileRefused("\n".join(f"{catalog}: {problem}" for problem in problems))
    if file.limits:
        typer.echo(f"{catalog}: {LIMITS_WITHOUT_EFFECT}", err=True)
    common = {"lsn": 0, "deleted": False}
    accounts = [
        {**row.model_dump(), **common, "effective_from": BEGINNING, "committed_at": BEGINNING}
        | {"tags": tags_text(row.tags or {}), "parent": row.parent or None}
        for row in file.accounts
    ]
    given = [{"terms": None, **row.model_dump()} for row in file.rows("prices")]
    prices = [{**row, **common, "terms": row["terms"] and terms_of(row["terms"]).text} for row in given]
    return (
        {"accounts": pa.Table.from_pylist(accounts, schema=ACCOUNTS)},
        {"prices": pa.Table.from_pylist(prices, schema=PRICES)},
    )


def _print(found: Compared, start: datetime, end: datetime, schema: str, form: Format) -> None:
    if form is Format.JSON:
        compared = {"totals": found.totals, "windows": found.windows, "periods_left_out": found.periods_left_out}
        of_months = {"bills": found.bills.totals, "lines": found.bills.lines, "months_left_out": found.bills.left_out}
        print_document({"from": start, "to": end, "schema": schema, **compared, **of_months})
        return
    print_rows(found.windows, COLUMNS, form)
    for total in found.totals:
        typer.echo(f"{total['account']}: {_sentence(total)}", err=True)
    if found.periods_left_out:
        typer.echo(_of_left_out(found.periods_left_out), err=True)
    for bill in found.bills.totals:
        typer.echo(f"{bill['account']}, bill of {bill['month']}: {_sentence(bill)}", err=True)
    if found.bills.left_out:
        typer.echo(_of_months_left_out(found.bills.left_out), err=True)


def _of_left_out(count: int) -> str:
    subject = "1 period of a meter lies" if count == 1 else f"{count} periods of meters lie"
    return (
        f"{subject} only partly between --from and --to, and cannot be compared: give the bounds of days or months in "
        "the time zone of the account"
    )


def _of_months_left_out(count: int) -> str:
    subject = "1 month of an account lies" if count == 1 else f"{count} months of accounts lie"
    return (
        f"{subject} only partly between --from and --to: tiers, packages, included units and fees of it are not "
        "compared. Give the bounds of months in the time zone of the account"
    )


def _sentence(total: Mapping[str, Any]) -> str:
    if total["currency"] is None:
        return "without a currency, so without a price"
    live, replayed, difference = (
        plain(total[f"{name}_amount"] or Decimal(0)) for name in ("live", "replayed", "difference")
    )
    return f"live {live}, replayed {replayed}, difference {difference} {total['currency']}"

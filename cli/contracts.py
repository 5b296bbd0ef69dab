"""`weir contracts`: lists contracts, and checks events against them, without a stack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import Format, FormatOption, Row, print_rows
from deployment.errors import FileRefused

if TYPE_CHECKING:
    from metering.contracts.model import Contract

FIELD_COLUMNS = ("type", "family", "path", "holds", "rule", "required", "column", "reason")

contracts = typer.Typer(no_args_is_help=True, help="List the contracts of events, and check your events against them.")

ContractOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--contract",
        metavar="FILE",
        help="A further contract, a JSON Schema document; may be repeated. It replaces a shipped one with its $id.",
    ),
]


@contracts.callback()
def _contracts() -> None:
    """List the contracts of events, and check your events against them."""


@contracts.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="One event a line; - for standard input.")],
    *,
    contract: ContractOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Validate events as ingestion would, without sending them: which are valid, and what the others break, and where.

    An event of a type without a contract is valid: it is kept and counted, but on no bill. What depends on the time
    of receipt is not checked: whether the event is too_old, future or a duplicate. A record is too_large above the
    default of max_record_bytes.

    For a valid event, `unread` lists the members that no contract reads, and `hint` says if it reports no quantity at
    all, or which type was probably meant. Blank lines are skipped. Exit status 0 if all events are valid, 1 if some
    are not, 2 for a document that is not a contract.
    """
    from cli.validated_lines import COLUMNS, INVALID, ValidatedLines

    found = ValidatedLines(_in_force(contract))
    print_rows((row for file in files for row in found.rows(file)), COLUMNS, form)
    typer.echo(found.summary, err=True)
    if found.counts[INVALID]:
        raise typer.Exit(1)


@contracts.command("list")
def list_(*, contract: ContractOption = None, form: FormatOption = Format.TABLE) -> None:
    """List the contracts in force, field by field: where it is in an event, its type, and which column it fills.

    It lists those that Weir ships and those of --contract. Exit status 2 for a document that is not a contract.
    """
    rows = (row for _, document in sorted(_in_force(contract).items()) for row in field_rows(document))
    print_rows(rows, FIELD_COLUMNS, form)


def field_rows(contract: Contract) -> Iterator[Row]:
    """Rows with the keys FIELD_COLUMNS, one for each field; one without a field for a contract that reads none."""
    from metering.contracts.wording import holds, rule_of

    named: dict[str, Any] = {"type": contract.type, "family": contract.family.value}
    if not contract.fields:
        yield {**dict.fromkeys(FIELD_COLUMNS), **named}
    for field in contract.fields:
        yield {
            **named,
            "path": field.pointer,
            "holds": holds(field),
            "rule": rule_of(field),
            "required": field.is_required,
            "column": field.column,
            "reason": field.reason.value,
        }


def _in_force(files: list[Path] | None) -> dict[str, Contract]:
    """The contracts that hold with those in the files, by type; a refused one ends the command."""
    from metering.contracts.field_reader import ContractRefused
    from metering.contracts.files import documents_in
    from metering.contracts.schema import contracts_of
    from metering.contracts.shipped import shipped

    try:
        return contracts_of(documents_in(files or [], shipped()), shipped())
    except ContractRefused as refusal:
        raise FileRefused(str(refusal)) from None

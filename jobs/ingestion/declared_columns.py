"""Journal columns that contracts declare, and shipped columns that a user's contracts leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import structlog
from deltalake import DeltaTable

from jobs.runtime.errors import Refused
from jobs.streams import JOURNAL
from metering.contracts.model import Contract
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped

log = structlog.get_logger()


def declared_columns(fields: Iterable[pa.Field], journal: DeltaTable | None) -> list[pa.Field]:
    """Those of the contracts' columns that every journal has not.

    Raises Refused where this journal has one of them with another type.
    """
    declared = [field for field in fields if field.name not in JOURNAL.names]
    stored = {} if journal is None else {field.name: field.type for field in pa.schema(journal.schema().to_arrow())}
    for field in declared:
        if stored.get(field.name, field.type) != field.type:
            raise Refused(
                f"the contracts declare the column {field.name} as {field.type}, but the journal has it as "
                f"{stored[field.name]} from an earlier contract, and a column keeps its type; give the field another "
                "x-weir-column, or its earlier type"
            )
    return declared


def warn_of_left_out(contracts: Mapping[str, Contract]) -> None:
    """Warn about fields that a user's contract for one of Weir's types leaves out: they will not be billed."""
    for name, contract in contracts_of([], shipped()).items():
        if name not in contracts:
            continue  # An upgraded installation knows no reversals.
        columns = {field.column for field in contract.fields} - {field.column for field in contracts[name].fields}
        if columns:
            log.warning(
                "a contract replaces one of Weir's and does not read all that it read",
                contract=name,
                columns=sorted(columns),
            )

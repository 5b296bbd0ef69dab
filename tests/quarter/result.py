"""What a run measured, as the page that is committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.quarter.run import Result
from tests.quarter.truth import DAYS, Truth

HEAD = """\
# A quarter of usage, to the last digit

Written by `make quarter`. A generator that imports nothing of Weir draws a quarter and keeps its truth; its records go
with their own stamps through the shipped sinks, and audits correct what is known better later. What Weir holds in the
end is compared with what the truth comes to in Python's `Decimal`, and each closed window with what it showed when it
closed and its corrections since.

{records:,} records over {days} days, {accounts} accounts in {zones}; seed {seed}, commit `{commit}`,
{seconds:,.0f} s on {cores} cores.

**{cells:,} cells compared, {wrong} wrong.**
"""
CELLS = """
| compared: quantity and amount | cells | wrong |
|---|---:|---:|
"""
SHOWN = "| closed windows, what they showed plus corrections; {moved:,} have moved | {closed:,} | {wrong} |\n"
COUNTED = """
{audits} audits put {put_right:,} rows right. One more finds nothing to do, and proves sessions, windows, days,
stragglers and corrections (I5, I6, I8).

| in the truth | times |
|---|---:|
"""
MADE = """
| made by the applications | | rows |
|---|---|---:|
"""


def page(truth: Truth, result: Result, commit: str, cores: int) -> str:
    """The page, in Markdown."""
    said = HEAD.format(
        records=len(truth.records),
        days=DAYS,
        accounts=len(truth.zones),
        zones=", ".join(sorted({*truth.zones.values()})),
        seed=truth.seed,
        commit=commit,
        seconds=result.seconds,
        cores=cores,
        cells=sum(each.cells for each in result.cells) + result.closed_windows,
        wrong=len(result.wrong),
    )
    cells = "".join(f"| {each.what} | {each.cells:,} | {len(each.wrong)} |\n" for each in result.cells)
    shown = SHOWN.format(moved=result.moved_windows, closed=result.closed_windows, wrong=result.unexplained)
    counted = COUNTED.format(audits=result.audits, put_right=result.put_right)
    told = "".join(f"| {name} | {count:,} |\n" for name, count in truth.counts.items())
    return f"{said}{CELLS}{cells}{shown}{counted}{told}{MADE}{''.join(_rows(result.made))}"


def _rows(made: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for table, counts in made.items():
        yield from (f"| {table} | {name} | {count:,} |\n" for name, count in sorted(counts.items()))

"""What a run measured, as the page that is committed."""

from __future__ import annotations

from tests.edits.run import KILLED, Result

HEAD = """\
# A thousand edits of the catalog, under traffic and kills

Written by `make edits`. A running stack (`weir up`: broker, Postgres, Kafka Connect with Debezium, the four
applications) gets edits of `catalog.prices`, `.accounts` and `.plans` by SQL, in random transactions, while usage
flows; Connect's worker, Postgres and joins are killed (SIGKILL) in turn. Then everything drains. Which price each usage
row must have is computed by plain Python, which imports nothing of Weir, from what the journal told before the row was
decided; and the versions that joins holds must be what the database has committed, row by row, in order.

Seed {seed}, commit `{commit}`, {seconds:,.0f} s on {cores} cores.

**{edits:,} edits, {kills} kills: {versions:,} price versions of {rows:,} usage rows compared, {wrong} wrong.**
"""
TABLE = """
| {what} | times |
|---|---:|
"""
COMPARED = (
    "rows of usage",
    "rows without a contract",
    "rows whose contract another was told for since",
    "price versions",
    "without a price",
    "that would be another, had the end been known",
    "rows of the catalog with versions",
    "versions",
    "changes published again",
)


def page(result: Result, commit: str, cores: int) -> str:
    """The page, in Markdown."""
    counts = result.counts
    said = HEAD.format(
        seed=result.plan.seed,
        commit=commit,
        seconds=result.seconds,
        cores=cores,
        edits=counts["edits"],
        kills=sum(result.kills.values()),
        versions=counts["price versions"],
        rows=counts["rows of usage"],
        wrong=len(result.wrong),
    )
    done = {name: count for name, count in sorted(counts.items()) if name not in COMPARED}
    killed = {f"{name} killed": result.kills[name] for name in KILLED}
    parts = (("done", {**done, **killed}), ("compared", {name: counts[name] for name in COMPARED}))
    tables = "".join(
        TABLE.format(what=what) + "".join(f"| {name} | {count:,} |\n" for name, count in told.items())
        for what, told in parts
    )
    seen = "is seen" if result.planted_seen else "is NOT seen"
    return f"{said}{tables}\nThat a price of the history differs in its twelfth decimal {seen}.\n"

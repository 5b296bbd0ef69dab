"""The commands of `weir`: each module is imported only when its command runs, so no other's libraries load."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand


class Panel(StrEnum):
    """Under which heading `weir --help` lists a command."""

    RUN = "Run"
    QUERY = "Query"
    CHANGE = "Change"
    REPAIR = "Repair"


@dataclass(frozen=True)
class Entry:
    """A command: its `module`, the name of its function or group there, and the first sentence of its help."""

    name: str
    panel: Panel
    module: str
    summary: str

    @property
    def attribute(self) -> str:
        """The function, or the `typer.Typer` of a group."""
        return self.name.replace("-", "_")

    def load(self) -> Any:
        """The command itself, whose module is imported."""
        found = getattr(import_module(self.module), self.attribute)
        alone = typer.Typer()
        alone.callback()(_nothing)
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=self.name, rich_help_panel=self.panel.value)
        else:
            alone.command(name=self.name, rich_help_panel=self.panel.value)(found)
        group: Any = typer.main.get_command(alone)
        return _reflowed(group.commands[self.name])

    def listed(self) -> TyperCommand:
        """What `weir --help` and a shell's completion show of it."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self.panel.value)


ENTRIES = (
    Entry(
        "up",
        Panel.RUN,
        "cli.stack",
        "Start the broker, the database, the applications and the dashboard; Ctrl-C stops them.",
    ),
    Entry("down", Panel.RUN, "cli.stack", "Stop what `weir up` started on this folder, and nothing else."),
    Entry(
        "demo",
        Panel.RUN,
        "cli.demo",
        "Start a stack, send traffic with every kind of trouble, and compare what was billed with the truth.",
    ),
    Entry(
        "status",
        Panel.RUN,
        "cli.status",
        "Show each application: state, records and seconds behind, last batch, restarts.",
    ),
    Entry(
        "topics",
        Panel.RUN,
        "cli.topics",
        "Create missing topics, and check the settings of existing ones.",
    ),
    Entry(
        "produce",
        Panel.RUN,
        "cli.produce",
        "Send CloudEvents to Kafka, one a line, unchanged and keyed by their subject. Blank lines are skipped.",
    ),
    Entry("drain", Panel.RUN, "cli.drain", "Wait until all applications have processed what is in Kafka now."),
    Entry(
        "traffic",
        Panel.RUN,
        "cli.traffic",
        "Apply a catalog of its own, send traffic with every kind of trouble, and write down the expected result.",
    ),
    Entry(
        "compare",
        Panel.RUN,
        "cli.compare",
        "Wait until a run of `weir traffic` is decided and billed, and compare it with its truth.",
    ),
    Entry("usage", Panel.QUERY, "cli.usage", "List usage and its amount per window, account, model and meter."),
    Entry(
        "view",
        Panel.QUERY,
        "cli.view",
        "Show what a view measures: a row for each window and key with an outcome, in the last hour.",
    ),
    Entry("pattern", Panel.QUERY, "cli.pattern", "List the patterns that analytics looks for, and their matches."),
    Entry(
        "explain",
        Panel.QUERY,
        "cli.explain.command",
        "Explain a number, or what became of a record: line, windows, usage, outcomes, and the records as received.",
    ),
    Entry(
        "meters",
        Panel.QUERY,
        "cli.meters",
        "List the meters: what each counts, whether the configuration still declares it, and a sentence that "
        "explains it.",
    ),
    Entry(
        "sessions",
        Panel.QUERY,
        "cli.sessions",
        "List sessions: a user's events with no gap longer than the session gap between them.",
    ),
    Entry(
        "activity",
        Panel.QUERY,
        "cli.activity",
        "List what people did, newest first: changes of the catalog, decisions, API keys, skipped records, redrives.",
    ),
    Entry(
        "verify",
        Panel.QUERY,
        "cli.activity",
        "Verify the hash chains of the activity log and of every invoice, and name what differs.",
    ),
    Entry("invoices", Panel.QUERY, "cli.invoices", "List, show, verify and void invoices."),
    Entry(
        "corrections",
        Panel.QUERY,
        "cli.corrections",
        "List corrections: what a closed window was, what it became, and the rows of usage that did it.",
    ),
    Entry(
        "consumers",
        Panel.QUERY,
        "cli.consumers",
        "List the consumers that acknowledge corrections, and remove one that is not used.",
    ),
    Entry(
        "conflicts",
        Panel.QUERY,
        "cli.conflicts",
        "List conflicts: events with the source and id of an accepted event but different content, next to that event.",
    ),
    Entry(
        "types",
        Panel.QUERY,
        "cli.types",
        "List the event types that Weir does not know: a typo, or a version that is newer than this Weir.",
    ),
    Entry(
        "rules",
        Panel.QUERY,
        "cli.rules",
        "List the decision rules (timeouts, grace, horizons, gaps, late policies), each from the row on "
        "where it applies.",
    ),
    Entry(
        "contracts",
        Panel.QUERY,
        "cli.contracts",
        "List the contracts of events, and check your events against them.",
    ),
    Entry(
        "what-if",
        Panel.QUERY,
        "cli.what_if",
        "Bill a past period with other prices or rules into a schema of its own, and list what differs.",
    ),
    Entry(
        "models",
        Panel.QUERY,
        "cli.models",
        "Rank the models by requests, tokens, cost or users, with the change and the busiest minute.",
    ),
    Entry(
        "forecast",
        Panel.QUERY,
        "cli.forecast",
        "Forecast what each account's usage of a month will cost, with the error of earlier forecasts.",
    ),
    Entry(
        "limits",
        Panel.QUERY,
        "cli.limits",
        "List limits, how near accounts are to them, and which thresholds were crossed.",
    ),
    Entry("pools", Panel.QUERY, "cli.pools", "List which accounts have one total for tiers and packages."),
    Entry("export", Panel.QUERY, "cli.export", "Write usage and its cost to files, for other systems."),
    Entry("catalog", Panel.CHANGE, "cli.catalog", "Change and list accounts, plans and prices."),
    Entry("watch", Panel.CHANGE, "cli.watch", "Add, list, try and remove stored queries, and list their hits."),
    Entry("keys", Panel.CHANGE, "cli.keys", "Make, list, rotate and revoke API keys."),
    Entry(
        "webhooks",
        Panel.CHANGE,
        "cli.webhooks",
        "Add, list, change, rotate, disable, enable and remove endpoints; list deliveries, and send them again.",
    ),
    Entry(
        "stragglers",
        Panel.CHANGE,
        "cli.stragglers",
        "List stragglers: usage received after the end of its window and the grace.",
    ),
    Entry(
        "close",
        Panel.CHANGE,
        "cli.close",
        "Close a month: issue an invoice for each account and currency, of usage that an audit has proved.",
    ),
    Entry(
        "backfill",
        Panel.CHANGE,
        "cli.backfilling.command",
        "Send events of the past, before or beside live traffic; each counts once, however often it is sent.",
    ),
    Entry(
        "audit",
        Panel.REPAIR,
        "cli.audit",
        "Recompute everything from the journal, append corrections where the cause is known, and prove the rest.",
    ),
    Entry(
        "dead-letters",
        Panel.REPAIR,
        "cli.dead_letters",
        "List dead letters: records that were rejected, with the reason, the broken rule, and the value as received.",
    ),
    Entry(
        "journal",
        Panel.REPAIR,
        "cli.journal",
        "Show that every record has exactly one row: offsets read = absent + accepted + rejected + duplicate "
        "+ conflict.",
    ),
    Entry(
        "rebuild",
        Panel.REPAIR,
        "cli.rebuild",
        "Make an application's tables in Postgres again, from usage (billing, analytics) or the journal "
        "(sessionization).",
    ),
    Entry(
        "compact",
        Panel.REPAIR,
        "cli.compact",
        "Merge the small files of days that are over, and delete files that were replaced long ago.",
    ),
    Entry(
        "retain",
        Panel.REPAIR,
        "cli.retain",
        "Remove whole days that need not be kept any longer, and list them. The applications may run meanwhile.",
    ),
    Entry(
        "forget",
        Panel.REPAIR,
        "cli.forget",
        "Forget a person: remove the name from the tables that Weir writes. No sum changes.",
    ),
)


EARLIER = {"replay": "what-if"}
"""Commands that were renamed, for one version."""


def _reflowed(command: Any) -> Any:
    """The command, whose help is broken where the terminal ends, and not where lines of the source do."""
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help or "") or None
    for inner in getattr(command, "commands", {}).values():
        _reflowed(inner)
    return command


def _nothing() -> None:
    """So that a single command is in a group, too."""

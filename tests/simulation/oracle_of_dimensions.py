"""I10: what usage says of its account and of its event, by the dimensions that its driver had, row by row."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from jobs.journal.catalog_changes import parse_change
from jobs.runtime.effective_rules import parse_history
from jobs.streams import CatalogTopic
from metering.pricing import Version
from metering.vocabulary import UsageCause
from tests.simulation.made import Found, Row
from tests.specifications.pricing import account_as_of

Said = dict[str, str]


def dimensions(found: Found) -> Iterator[str]:
    """What a row says is what was known when its last part came; what puts another right says what that said."""
    accounts = _accounts(found)
    by_lsn = {row["lsn"]: row for row in found.journal}
    said: dict[int, Said] = {}
    names: Sequence[str] = ()
    for usage in found.usage:
        if usage["rules"] is not None:
            names = parse_history(usage["rules"])[-1].rules["dimensions"]
        if usage["cause"] == UsageCause.DECIDED:
            continue
        said[usage["lsn"]] = told = json.loads(usage["dimensions"] or "{}")
        is_decided_here = usage["cause"] == UsageCause.STREAM
        # By which names the audit goes, `audited` says; whatever they are, each has one value.
        every = _every(usage, by_lsn, accounts, names if is_decided_here else list(told))
        if told != every:
            yield f"I10: usage {usage['lsn']} has the dimensions {told} instead of {every}"
        for lsn in usage["corrects_lsns"] or ():
            if usage["cause"] == UsageCause.REPRICED and told != said.get(lsn, told):
                yield f"I8: usage {usage['lsn']} has the dimensions {told}, but corrects {lsn}, which has {said[lsn]}"


def _every(usage: Row, by_lsn: dict[int, Row], accounts: dict[str, list[Version[Said]]], names: Sequence[str]) -> Said:
    request, completion = (by_lsn.get(usage[part]) for part in ("request_lsn", "completion_lsn"))
    parts = [part for part in (request, completion) if part is not None]
    # The completion says when it was; and the last one that came, what was known.
    version = account_as_of(accounts[usage["account"]], parts[-1]["event_time"], max(part["lsn"] for part in parts))
    of_account = {} if version is None or version.value is None else version.value
    values = {name: next((p[name] for p in parts if p.get(name) is not None), None) for name in names}
    every = {**values, **{name: of_account.get(name) for name in names if name.startswith("account.")}}
    return {name: value for name, value in every.items() if value is not None}


def _accounts(found: Found) -> dict[str, list[Version[Said]]]:
    accounts: dict[str, list[Version[Said]]] = defaultdict(list)
    for row in found.journal:
        if row["topic"] != CatalogTopic.ACCOUNTS:
            continue
        change: dict[str, Any] | None = parse_change(row["topic"], row["value"], row["lsn"])
        assert change is not None
        says = {f"account.{name}": change.get(name) for name in ("plan", "name", "parent", "timezone")}
        says |= {f"account.tags.{tag}": text for tag, text in json.loads(change.get("tags") or "{}").items()}
        held = None if change["deleted"] else {name: text for name, text in says.items() if text is not None}
        accounts[change["account"]].append(Version(row["lsn"], change["effective_from"], held))
    return accounts

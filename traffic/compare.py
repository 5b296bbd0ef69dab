"""What was journalled, matched, billed and sorted into sessions, against the truth of a run. Reads, changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal, localcontext
from typing import Any, TypeVar

import psycopg

from traffic import found, shapes
from traffic.truth import Truth

EXAMPLES = 5
Billed = TypeVar("Billed", shapes.Window, shapes.Period)
LOST, DUPLICATED, PHANTOM = "lost", "duplicated", "phantom"


@dataclass(frozen=True)
class Check:
    """One kind of thing: how many must be there, how many of them are, and what is there beyond them."""

    name: str
    expected: int
    found: int
    unexpected: int = 0
    examples: tuple[str, ...] = ()
    is_money: bool = False

    @property
    def is_equal(self) -> bool:
        """Nothing is missing, nothing is too much."""
        return self.expected == self.found and self.unexpected == 0


@dataclass(frozen=True)
class Comparison:
    """All checks of one run."""

    checks: tuple[Check, ...]

    def unexpected(self, name: str) -> int:
        """How many things are there that must not be, by the check's name."""
        return sum(check.unexpected for check in self.checks if check.name == name)

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        lost, doubled = self.unexpected(f"events {LOST}"), self.unexpected(f"events {DUPLICATED}")
        wrong = sum(check.expected - check.found + check.unexpected for check in self.checks if check.is_money)
        failed = sum(not check.is_equal for check in self.checks)
        counts = f"{lost} lost, {doubled} duplicated, {wrong} wrong in the last digit"
        return f"{counts}; {'everything is as the truth says' if not failed else f'{failed} checks DIFFER'}."

    @property
    def is_equal(self) -> bool:
        """Everything is as the truth says."""
        return all(check.is_equal for check in self.checks)

    @property
    def differences(self) -> list[str]:
        """A line for each check that failed, and for some of what it found."""
        return [
            line
            for check in self.checks
            if not check.is_equal
            for line in (
                f"{check.name}: {check.expected} expected, {check.found} found, {check.unexpected} unexpected",
                *(f"  {example}" for example in check.examples),
            )
        ]


def compare(truth: Truth, postgres_url: str, tables: str, *, audited: bool = False) -> Comparison:
    """Compare a run that has been drained, waiting requests included, with its truth.

    What the applications have made is the same before and after an audit, but for windows. `audited`: an audit of
    everything has been since, so these and what stands of each outcome must be what it makes of them; else none has.
    Raises ValueError for the truth of an older release, which does not say what an audit makes.
    """
    if audited and "audited" not in truth:
        raise ValueError("this truth does not say what stands after an audit: a release has written it before this one")
    records = list(found.records(tables, truth))
    usage = list(found.usage(tables, truth["accounts"]))
    with psycopg.connect(postgres_url, connect_timeout=10) as database:
        price_starts = found.price_starts(tables)
        windows = list(found.windows(database, truth["accounts"], price_starts))
        periods = list(found.periods(database, truth["accounts"], price_starts))
        late = list(found.late(database, truth["accounts"]))
        stragglers = list(found.stragglers(database, truth["accounts"]))
        sessions = found.sessions(database, truth["accounts"])
        sources, runs = found.sources(database, truth["tag"])
    live = [row for row in usage if row.cause == shapes.STREAM]
    return Comparison(
        (
            *_records(truth, records),
            *_identities(truth, records),
            *_outcomes(truth, live),
            *_quantities(truth, live),
            _late(truth, live),
            *_late_rows(truth, live, late),
            *(_standing(truth, usage) if audited else (_nobody_audited(usage),)),
            *_windows(windows, truth["audited"]["totals"] if audited else truth["totals"]),
            *_periods(periods, (truth["audited"] if audited else truth).get("periods")),
            *_stragglers(truth, [row for row in stragglers if row.cause == shapes.STREAM]),
            *(_standing_stragglers(truth, stragglers) if audited else ()),
            _sessions(truth, sessions),
            *_sources(truth, sources, runs),
        )
    )


def _nobody_audited(rows: list[shapes.Usage]) -> Check:
    """Windows are compared with what live bills, so nobody may have corrected them."""
    others = Counter(row.cause for row in rows if row.cause != shapes.STREAM)
    hint = [f"{', '.join(sorted(others))}: compare what an audit has corrected with --audited"] if others else []
    return Check("rows of an audit", 0, 0, others.total(), tuple(hint))


def _standing(truth: Truth, rows: list[shapes.Usage]) -> Iterator[Check]:
    """What stands of each outcome, and how much of each meter: what is taken back stands no more."""
    outcomes: Counter[Any] = Counter()
    quantities: Counter[Any] = Counter()
    for o in truth["outcomes"]:
        left = o.get("left", o["quantities"])
        if left is None:
            continue
        of = o["account"], o["request_id"]
        outcomes[(o["outcome"], *of, _model(o), o["day"])] += 1
        quantities.update((meter, *of, o["outcome"], units and Decimal(units)) for meter, units in left.items())
    there: Counter[Any] = Counter()
    units_there: Counter[Any] = Counter()
    for row in rows:
        there[row.outcome, row.account, row.request_id, _model(vars(row)), row.day.isoformat()] += row.sign
        for meter, quantity in row.reported.items():
            units_there[meter, row.account, row.request_id, row.outcome, quantity] += row.sign
    yield from _by(lambda key: f"requests {key[0]} that stand", outcomes, +there)
    yield from _by(lambda key: f"quantities of {key[0]} that stand", quantities, +units_there)
    below = [key for key, count in there.items() if count < 0]
    yield Check("outcomes taken back twice", 0, 0, len(below), tuple(map(str, below[:EXAMPLES])))


def _records(truth: Truth, rows: list[shapes.Record]) -> Iterator[Check]:
    """Per kind: each record has its disposition, and a rejected one a reason of its class."""
    known = {record["digest"] for record in truth["records"]}
    left = Counter((row.digest, row.disposition, _reason_class(row.reason)) for row in rows if row.digest in known)
    kinds: dict[str, list[int]] = {}
    missing: dict[str, list[str]] = {}
    for record in truth["records"]:
        kind = "malformed" if record["kind"].startswith("malformed") else record["kind"]
        tally = kinds.setdefault(f"{record['disposition']}: {kind}", [0, 0])
        tally[0] += 1
        key = record["digest"], record["disposition"], record["reason"]
        if left[key] > 0:
            left[key] -= 1
            tally[1] += 1
        else:
            missing.setdefault(f"{record['disposition']}: {kind}", []).append(f"missing {record}")
    for name, (expected, right) in sorted(kinds.items()):
        yield Check(name, expected, right, examples=tuple(missing.get(name, ())[:EXAMPLES]))
    extra = [f"{count} times {key}" for key, count in (+left).items()]
    yield Check("records with another fate", 0, 0, sum((+left).values()), tuple(extra[:EXAMPLES]))


def _reason_class(reason: str | None) -> str | None:
    return reason if reason in (None, "too_old", "future") else "malformed"


def _identities(truth: Truth, rows: list[shapes.Record]) -> Iterator[Check]:
    """I3: lost, duplicated and phantom identities, apart."""
    valid = {(r["source"], r["id"]) for r in truth["records"] if r["disposition"] == "accepted"}
    accepted = Counter((row.source, row.id) for row in rows if row.disposition == "accepted")
    lost = valid - accepted.keys()
    doubled = [identity for identity, count in accepted.items() if count > 1]
    phantom = accepted.keys() - valid
    for name, found_there in ((LOST, lost), (DUPLICATED, doubled), (PHANTOM, phantom)):
        yield Check(f"events {name}", 0, 0, len(found_there), tuple(map(str, list(found_there)[:EXAMPLES])))


def _outcomes(truth: Truth, rows: list[shapes.Usage]) -> Iterator[Check]:
    """Every request has its outcome, once, on the day of its account's calendar."""
    is_older = any("day" not in outcome for outcome in truth["outcomes"])
    expected = Counter(
        (o["outcome"], o["account"], o["request_id"], _model(o), None if is_older else o["day"])
        for o in truth["outcomes"]
    )
    there = Counter(
        (r.outcome, r.account, r.request_id, _model(vars(r)), None if is_older else r.day.isoformat()) for r in rows
    )
    yield from _by(lambda key: f"requests {key[0]}", expected, there)


def _model(outcome: Mapping[str, Any]) -> str | None:
    """The model, where the truth says which: of what is superseded a completion has none, and is nobody's bill."""
    return None if outcome["outcome"] == "superseded" else outcome["model"]


def _quantities(truth: Truth, rows: list[shapes.Usage]) -> Iterator[Check]:
    """Every outcome has so much of each meter that is declared, and nothing of a meter that it need not report."""
    if any("quantities" not in outcome for outcome in truth["outcomes"]):
        return  # The truth of an older release.
    expected = Counter(
        (meter, o["account"], o["request_id"], o["outcome"], None if quantity is None else Decimal(quantity))
        for o in truth["outcomes"]
        for meter, quantity in o["quantities"].items()
    )
    there = Counter(
        (meter, r.account, r.request_id, r.outcome, quantity) for r in rows for meter, quantity in r.reported.items()
    )
    yield from _by(lambda key: f"quantities of {key[0]}", expected, there)


def _late(truth: Truth, rows: list[shapes.Usage]) -> Check:
    """What certainly is late was received after its window, and within grace."""
    expected = set(truth["late"])
    late = {row.request_id for row in rows if 0 <= row.late_seconds < truth["policy"]["grace_seconds"]}
    missing = sorted(expected - late)[:EXAMPLES]
    return Check("requests certainly late", len(expected), len(expected & late), examples=tuple(missing))


def _late_rows(truth: Truth, usage: list[shapes.Usage], rows: list[shapes.Late]) -> Iterator[Check]:
    """What billing counted as late is what usage says: an event of this very minute is near that boundary."""
    expected = Counter(found.late_of(usage, truth["policy"]["grace_seconds"]))
    yield from _by(lambda row: f"late rows of {row.meter}", expected, Counter(rows))


def _windows(rows: list[shapes.Window], totals: list[Mapping[str, Any]]) -> Iterator[Check]:
    """Every account, model, meter, currency, window and price: quantity and amount to the last digit, and corrected."""
    expected = [shapes.window(total) for total in totals]
    is_older = any("price_from" not in total for total in totals)
    there = [row for row in (_without_prices(rows) if is_older else rows) if row.quantity != 0]
    unknown = {_cell(row) for row in expected if row.corrected is None}
    there = [replace(row, corrected=None) if _cell(row) in unknown else row for row in there]
    yield from _money("windows", expected, there)
    for currency in sorted({row.currency or "no currency" for row in expected}):
        with localcontext(prec=1_000):  # Python's own 28 digits would round both sides alike
            must, is_there = (
                sum((row.amount for row in rows_ if (row.currency or "no currency") == currency), Decimal(0))
                for rows_ in (expected, there)
            )
        right = int(must == is_there)
        yield Check(f"total {currency} {must:f}", 1, right, examples=(f"it is {is_there:f}",), is_money=True)


def _periods(rows: list[shapes.Period], lines: list[Mapping[str, Any]] | None) -> Iterator[Check]:
    """Every account, model, meter, currency, period and price: quantity and amount to the last digit, and corrected."""
    if lines is None:
        return  # The truth of an older release.
    expected = [shapes.period(line) for line in lines]
    unknown = {_cell(row) for row in expected if row.corrected is None}
    there = [replace(row, corrected=None) if _cell(row) in unknown else row for row in rows if row.quantity != 0]
    yield from _money("periods", expected, there)


def _money(name: str, expected: Iterable[Billed], there: Iterable[Billed]) -> Iterator[Check]:
    for check in _by(lambda row: f"{name} of {row.meter}", Counter(expected), Counter(there)):
        yield replace(check, is_money=True)


def _cell(row: Billed) -> Billed:
    """Which window or period it is, whatever it holds."""
    return replace(row, quantity=Decimal(0), amount=Decimal(0), corrected=None)


def _without_prices(rows: Iterable[shapes.Window]) -> Iterator[shapes.Window]:
    """The same, added up over prices: as much as the truth of an older release says."""
    sums: dict[shapes.Window, tuple[Decimal, Decimal]] = {}
    with localcontext(prec=1_000):
        for row in rows:
            of = replace(row, price_from=None, unit_price=None, corrected=False, quantity=Decimal(0), amount=Decimal(0))
            quantity, amount = sums.get(of, (Decimal(0), Decimal(0)))
            sums[of] = quantity + row.quantity, amount + row.amount
    return (replace(of, quantity=quantity, amount=amount) for of, (quantity, amount) in sums.items())


def _stragglers(truth: Truth, rows: list[shapes.Straggler]) -> Iterator[Check]:
    expected = Counter(shapes.straggler(straggler) for straggler in truth["stragglers"])
    is_older = any("currency" not in straggler for straggler in truth["stragglers"])
    there = Counter(replace(row, model=None, currency=None) if is_older else row for row in rows if row.quantity != 0)
    yield from _by(lambda row: f"stragglers: {row.decision}", expected, there)


def _standing_stragglers(truth: Truth, rows: Iterable[shapes.Straggler]) -> Iterator[Check]:
    """What stands of stragglers: what takes one back, or its place, inherits what was decided."""
    both = []
    for listed in (map(shapes.straggler, truth["audited"]["stragglers"]), rows):
        sums: dict[shapes.Straggler, tuple[Decimal, Decimal]] = {}
        for row in listed:
            quantity, amount = sums.get(row.key, (Decimal(0), Decimal(0)))
            sums[row.key] = quantity + row.quantity, amount + (row.amount or 0)
        both.append(Counter((key, *values) for key, values in sums.items() if values[0]))
    yield from _by(lambda straggler: f"stragglers that stand: {straggler[0].decision}", *both)


def _sessions(truth: Truth, rows: Mapping[tuple[str, str], list[shapes.Session]]) -> Check:
    """The sessions of each user: numbers of events, first and last, where the truth says them."""
    # The truth of an older release lists numbers of events, and calls them so.
    sessions_by_user = {
        (s["account"], s["user_id"]): s["sessions"] if "sessions" in s else s["events"] for s in truth["sessions"]
    }
    expected = {user: sessions for user, sessions in sessions_by_user.items() if sessions is not None}
    uncertain = sessions_by_user.keys() - expected.keys()
    wrong = [user for user, sessions in expected.items() if not _are(sessions, rows.get(user, []))]
    strangers = [user for user in rows if user not in expected and user not in uncertain]
    examples = [f"{user}: {expected[user]} expected, {rows.get(user)} found" for user in wrong[:EXAMPLES]]
    right = len(expected) - len(wrong)
    return Check("users' sessions", len(expected), right, len(strangers), (*examples, *map(str, strangers[:EXAMPLES])))


def _are(expected: list[Any], there: list[shapes.Session]) -> bool:
    whole: list[Mapping[str, Any]] = [
        {"events": must, "start": None, "end": None} if isinstance(must, int) else must for must in expected
    ]
    return len(expected) == len(there) and all(
        must["events"] == is_there.events
        and all(
            must[bound] is None or datetime.fromisoformat(must[bound]) == getattr(is_there, bound)
            for bound in ("start", "end")
        )
        for must, is_there in zip(whole, there, strict=True)
    )


def _sources(truth: Truth, rows: list[shapes.Source], runs: list[shapes.Run]) -> Iterator[Check]:
    """Who was heard and until when, and which sequence numbers arrived and are missing."""
    if "sources" not in truth:
        return  # The truth of an older release.
    expected = Counter(shapes.source(source) for source in truth["sources"])
    in_truth = {(source["source"], source["source_epoch"]) for source in truth["sources"] if source["last_event_time"]}
    there = Counter(
        row if (row.source, row.source_epoch) in in_truth else replace(row, last_event_time=None) for row in rows
    )
    yield from _by(lambda _: "sources heard", expected, there)
    numbers = Counter(run for source in truth["sources"] for run in shapes.runs(source))
    yield from _by(lambda run: f"sequences {'arrived' if run.arrived else 'missing'}", numbers, Counter(runs))


def _by(name: Callable[[Any], str], expected: Mapping[Any, int], there: Mapping[Any, int]) -> Iterator[Check]:
    """A check for each name that the keys have."""
    must, is_there = Counter(expected), Counter(there)
    names = sorted({name(key) for key in (*must, *is_there)})
    right, missing, extra = must & is_there, must - is_there, is_there - must
    for group in names:
        yield Check(
            group,
            _count(must, name, group),
            _count(right, name, group),
            _count(extra, name, group),
            (*_examples("missing", missing, name, group), *_examples("unexpected", extra, name, group)),
        )


def _count(keys: Mapping[Any, int], name: Callable[[Any], str], group: str) -> int:
    return sum(count for key, count in keys.items() if name(key) == group)


def _examples(word: str, keys: Iterable[Any], name: Callable[[Any], str], group: str) -> list[str]:
    return [f"{word} {key}" for key in keys if name(key) == group][:EXAMPLES]

"""What is wrong with an account's invoices, in sentences that name it. All of it is recomputed from what is stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

from metering.digits import EXACT, plain
from metering.invoice_chain import BEGINNING, Event
from metering.invoices import CORRECTION, WRITE_OFF, Header, IssuedLine, Key, Line, State, document, totals

_ORDER = tuple(State)


@dataclass(frozen=True)
class StoredInvoice:
    """A header, and its lines with the hash that is stored with each."""

    header: Header
    lines: tuple[tuple[Line, str], ...]

    @property
    def document(self) -> str:
        """The hash of what is stored now."""
        return document(self.header, [line.hash for line, _ in self.lines])


@dataclass(frozen=True)
class Stored:
    """All invoices and events of one account."""

    account: str
    invoices: Sequence[StoredInvoice]
    events: Sequence[Event]


def wrong_account(stored: Stored) -> list[str]:
    """A sentence for each fault of an account's chain, invoices, lines and corrections."""
    by_name = {invoice.header.invoice: invoice for invoice in stored.invoices}
    found = [*_chain(stored.events), *_states(stored.events, by_name)]
    for invoice in stored.invoices:
        found += _content(invoice)
    found += _documents(stored.events, by_name)
    found += _corrections(stored.events, by_name)
    return found


def wrong_numbers(numbers: Mapping[str, Iterable[int]]) -> Iterator[str]:
    """Numbers that an issuer's series lacks or has twice."""
    for issuer, found in sorted(numbers.items()):
        ordered = sorted(found)
        for before, number in pairwise([0, *ordered]):
            if number > before + 1:
                missing = f"{before + 1}" if number == before + 2 else f"{before + 1} to {number - 1}"
                yield f"the series of {issuer} lacks number {missing}"
            elif number <= before:
                yield f"the series of {issuer} has number {number} twice"


def _chain(events: Sequence[Event]) -> Iterator[str]:
    previous, sequence = BEGINNING, 0
    for event in events:
        name = f"event {event.sequence} of {event.account} ({event.invoice} {event.state})"
        if event.sequence != sequence + 1:
            yield f"the chain of {event.account} lacks the events between {sequence} and {event.sequence}"
        elif event.previous != previous:
            yield f"{name} does not follow the one before it: they were exchanged, or one was changed"
        if event.hash != event.expected_hash:
            yield f"{name} is not what its hash says"
        previous, sequence = event.hash, event.sequence


def _states(events: Sequence[Event], invoices: Mapping[str, StoredInvoice]) -> Iterator[str]:
    states: defaultdict[str, list[State]] = defaultdict(list)
    for event in events:
        states[event.invoice].append(event.state)
        if event.invoice not in invoices:
            yield f"{event.invoice} is in the chain of {event.account}, and there is no such invoice of it"
    for name in invoices:
        if tuple(states[name]) not in (_ORDER[:2], _ORDER):
            yield f"{name} has the states {', '.join(states[name]) or 'none'}"


def _content(invoice: StoredInvoice) -> Iterator[str]:
    header, lines = invoice.header, [line for line, _ in invoice.lines]
    name = header.invoice
    there = {line.line for line in lines}
    for number in sorted(set(range(1, header.lines + 1)) ^ there):
        yield f"{name} {'lacks' if number <= header.lines else 'has more than its lines:'} line {number}"
    for (line, stored_hash), following in zip_longest(invoice.lines, lines[1:]):
        if line.hash != stored_hash:
            yield f"line {line.line} of {name} was changed: it is not what its hash says"
        yield from _arithmetic(name, header, line, is_rounded_here=not _takes_back(line, following))
    total, residual = totals(lines)
    if total != header.total:
        yield f"the lines of {name} sum to {plain(total)}, and its total is {plain(header.total)}"
    elif residual != header.residual:
        yield f"the residuals of {name} sum to {plain(residual)}, and it has {plain(header.residual)}"


def _arithmetic(name: str, header: Header, line: Line, *, is_rounded_here: bool) -> Iterator[str]:
    """What is taken back was rounded as the invoice of its line says, which may be otherwise."""
    exact = line.exact_amount
    if is_rounded_here and line.amount != header.money.rounded(exact):
        yield (
            f"line {line.line} of {name} is {plain(line.amount)}, and {plain(exact or 0 * line.amount)} rounded "
            f"{header.money.rounding} is {plain(header.money.rounded(exact))}"
        )
    elif EXACT.add(line.amount, line.residual) != (exact or 0):
        yield f"line {line.line} of {name}: its amount and what rounding left over are not its exact amount"


def _documents(events: Sequence[Event], invoices: Mapping[str, StoredInvoice]) -> Iterator[str]:
    """What differs from what was issued; two that have each other's content are named together."""
    issued = {event.invoice: event.document for event in events if event.state is State.OPEN}
    differing = {
        name: invoice for name, invoice in invoices.items() if name in issued and invoice.document != issued[name]
    }
    paired: set[str] = set()
    for name, invoice in differing.items():
        if name in paired:
            continue
        other = next(
            (other for other in differing if other != name and _has_content(invoice, differing[other], issued)), None
        )
        if other is not None:
            paired.add(other)
            yield f"{name} and {other} were swapped: each has content of the other"
        else:
            yield f"{name} is not what was issued"
    for event in events:
        if event.document != issued.get(event.invoice):
            yield f"event {event.sequence} of {event.account} is of another content of {event.invoice} than was issued"


def _has_content(invoice: StoredInvoice, other: StoredInvoice, issued: Mapping[str, str]) -> bool:
    """Whether `invoice` is what was issued if it takes back its lines, its header or both from `other`."""
    name, number = invoice.header.invoice, invoice.header.number
    moved = replace(other.header, invoice=name, number=number)
    for header, lines in ((invoice.header, other), (moved, invoice), (moved, other)):
        if document(header, [line.hash for line, _ in lines.lines]) == issued[name]:
            return True
    return False


def _corrections(events: Sequence[Event], invoices: Mapping[str, StoredInvoice]) -> Iterator[str]:
    """Each line that takes something back names the last line of its key, and takes back just that, once."""
    voided = {event.invoice for event in events if event.state is State.VOIDED}
    last: dict[tuple[str, Key], IssuedLine] = {}
    taken: dict[tuple[str, int], str] = {}
    for event in events:
        if event.state is not State.ISSUED or event.invoice in voided or event.invoice not in invoices:
            continue
        invoice = invoices[event.invoice]
        currency = invoice.header.money.currency
        lines = [line for line, _ in invoice.lines if line.key.kind != WRITE_OFF]
        for line, following in zip_longest(lines, lines[1:]):
            known = last.get((currency, line.key))
            name = f"line {line.line} of {event.invoice}"
            if _takes_back(line, following):
                place = (str(line.corrects_invoice), line.corrects_line or 0)
                if place in taken:
                    yield f"{name} takes back line {place[1]} of {place[0]}, which {taken[place]} took back already"
                elif known is None or (known.invoice, known.line.line) != place or not _is_negated(line, known.line):
                    yield f"{name} does not take back what {_issued(known)}"
                taken[place] = name
                continue
            if known is not None and line.corrects_invoice is None:
                yield f"{name} charges again what {_issued(known)}"
            last[currency, line.key] = IssuedLine(event.invoice, line)


def _takes_back(line: Line, following: Line | None) -> bool:
    """The first of a pair: both name the same line."""
    return (
        line.charge_class == CORRECTION
        and line.corrects_invoice is not None
        and following is not None
        and (following.key, following.corrects_invoice, following.corrects_line)
        == (line.key, line.corrects_invoice, line.corrects_line)
    )


def _is_negated(line: Line, known: Line) -> bool:
    pairs = ((line.quantity, known.quantity), (line.amount, known.amount), (line.residual, known.residual))
    return all(EXACT.add(*pair) == 0 for pair in pairs) and (line.exact_amount is None) == (known.exact_amount is None)


def _issued(known: IssuedLine | None) -> str:
    return "was ever issued" if known is None else f"line {known.line.line} of {known.invoice} issued"

"""`weir dead-letters redrive`: send rejected records again, once, as received or edited by a script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.author import NoteOption, reason_in, who
from cli.lines import refuse_missing
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from cli.reading import FromOption, ToOption, check_range

if TYPE_CHECKING:
    from datetime import datetime

    from cli.redrive.letters import DeadLetters, Letter
    from cli.redrive.offline import Offline
    from deployment.sender import Sender
    from jobs.runtime.kafka.headers import Headers

COLUMNS = ("topic", "partition", "offset", "reason", "fate", "detail", "value")
EARLIER = {"detail": "says"}
BATCH_ROWS, BATCH_BYTES = 500, 8 << 20
"""How many letters, and how many bytes of them, are validated at once; at least one."""


class Fate(StrEnum):
    """What becomes of a dead letter that was selected."""

    SENT = "sent"
    ACCEPTED = "would_be_accepted"
    REJECTED = "would_be_rejected"
    REPLAYED = "replayed"
    LEFT_OUT = "left_out"
    IMPOSSIBLE = "impossible"
    REFUSED = "refused"


FAILED = frozenset((Fate.REJECTED, Fate.IMPOSSIBLE, Fate.REFUSED))


def redrive(
    *,
    reason: Annotated[list[str], typer.Option("--reason", help="Only dead letters with this reason; may be repeated.")],
    start: FromOption = None,
    end: ToOption = None,
    edit: Annotated[
        Path | None,
        typer.Option(
            "--edit",
            metavar="SCRIPT",
            help="An executable that reads a line of JSON for each (topic, partition, offset, received_at, reason, "
            "violation, key, value, headers), and prints the event that is to be sent, or an empty line.",
        ),
    ] = None,
    note: NoteOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; list what would be sent.")] = False,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Send dead letters again, each once, as they were received or as SCRIPT edits them.

    Each keeps the time at which its record was first received, so it is as late as it was then. A record that was
    accepted this way is not sent again; of two copies only one is accepted, however they were edited. Events that
    ingestion would reject again by its present configuration are listed, not sent. Only ingestion knows whether an
    event is a duplicate. SCRIPT runs once; if it fails, nothing is sent. Sent records are counted, all others listed.

    Exit status 1 when some would be rejected, cannot be sent, or were refused by the broker; all others are sent.
    """
    from cli.dead_letter_rows import DeadLetterQuery, shortened
    from cli.journal_table import open_journal
    from cli.progress import telling
    from cli.redrive.letters import DeadLetters
    from cli.redrive.offline import Offline, ingestion_of
    from deployment.activity import record_command
    from deployment.event_topics import refuse_ending_topics
    from deployment.kafka_client import kafka_client
    from deployment.sender import Sender
    from deployment.stack import running_deployment
    from jobs.runtime.clock import MachineClock

    check_range(start, end)
    refuse_missing(edit)
    why = reason_in(note)
    stack = running_deployment(data_dir)
    if (journal := open_journal(stack.tables)) is None:
        print_rows([], COLUMNS, form, earlier=EARLIER)
        return
    config = ingestion_of(stack.postgres_url)
    if not dry_run:
        refuse_ending_topics(stack.postgres_url, config.topics)
        selection = _selection(reason, start, end, edit)
        record_command(stack.postgres_url, "redrive", "dead letters", who(), selection, note=why)
    sender = None if dry_run else Sender(kafka_client(stack.kafka_bootstrap))
    fates: Counter[Fate] = Counter()
    with telling("Dead letters:") as tell:
        letters = DeadLetters(journal, DeadLetterQuery(start, end, tuple(reason)))
        offline = Offline(config, MachineClock().now)
        rows = _rows(letters, edit, offline, _Sending(sender) if sender else None, tell)
        listed = _counted(rows, fates)
        print_rows(map(shortened, listed) if form is Format.TABLE else listed, COLUMNS, form, earlier=EARLIER)
    typer.echo(", ".join(f"{fates[fate]} {fate.replace('_', ' ')}" for fate in Fate if fates[fate]) or "none", err=True)
    if fates.keys() & FAILED:
        raise typer.Exit(1)


def _selection(
    reasons: list[str], start: datetime | None, end: datetime | None, edit: Path | None
) -> dict[str, object]:
    """What the activity log shows of a command."""
    bounds = {name: moment.isoformat() for name, moment in (("from", start), ("to", end)) if moment is not None}
    return {"reasons": reasons, **bounds, **({"edit": str(edit)} if edit else {})}


class _Sending:
    """Sends letters, and reports afterwards which the broker refused."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._sent: list[Letter] = []

    def send(self, topic: str, letter: Letter, event: bytes, own: Headers) -> None:
        """One, keyed as `weir produce` keys it, with its `own` headers and the mark of the record that was rejected
        first.
        """
        from dataclasses import replace

        from cli.redrive.offline import bytes_of
        from jobs.ingestion.documents import subject_of
        from jobs.ingestion.formats import document_of
        from jobs.runtime.kafka.marks import FIRST_RECEIVED, MARKS, REPLAYS

        headers = [header for header in own if header[0] not in MARKS.values()]
        headers.append((REPLAYS, letter.first.mark.encode()))
        if letter.reception_mark is not None:
            headers.append((FIRST_RECEIVED, bytes_of(letter.reception_mark)))
        document = document_of(event, own)
        key = letter.key if document is None else subject_of(document)
        self._sender.send(topic, key, event, number=len(self._sent), headers=headers)
        self._sent.append(replace(letter, key=None, value=None))

    def rows(self) -> Iterator[Row]:
        """What became of each, once the broker has answered."""
        self._sender.flush()
        refused = {refusal.number: refusal.reason for refusal in self._sender.refused}
        for number, letter in enumerate(self._sent):
            yield _row(letter, Fate.REFUSED if number in refused else Fate.SENT, refused.get(number))


def _rows(
    letters: DeadLetters, edit: Path | None, offline: Offline, sending: _Sending | None, tell: Callable[[str], None]
) -> Iterator[Row]:
    """What becomes of each dead letter; what was sent comes last."""
    from cli.redrive.script import edited

    for place, reason, lsn in letters.back:
        yield {**place._asdict(), "reason": reason, "fate": Fate.REPLAYED, "detail": f"as lsn {lsn}", "value": None}
    if edit is not None:
        tell(f"{edit} edits {len(letters)}")
    able = (letter for letter in letters if letter.problem is None)
    with nullcontext(None) if edit is None else edited(able, edit) as made:
        done = 0
        for several in _several(_events(letters, made)):
            yield from _redriven(several, offline, sending, is_edited=made is not None)
            done += len(several)
            tell(f"{done} of {len(letters)}")
    if sending is not None:
        yield from sending.rows()


def _events(letters: DeadLetters, made: Iterator[bytes] | None) -> Iterator[tuple[Letter, bytes]]:
    """Each letter with the event to send; empty if there is none."""
    for letter in letters:
        if letter.problem is not None:
            yield letter, b""
        else:
            yield letter, (letter.value or b"") if made is None else next(made)


def _several(events: Iterator[tuple[Letter, bytes]]) -> Iterator[list[tuple[Letter, bytes]]]:
    several: list[tuple[Letter, bytes]] = []
    size_bytes = 0
    for letter, event in events:
        if several and (len(several) == BATCH_ROWS or size_bytes + len(event) > BATCH_BYTES):
            yield several
            several, size_bytes = [], 0
        several.append((letter, event))
        size_bytes += len(event)
    if several:
        yield several


def _redriven(
    several: list[tuple[Letter, bytes]], offline: Offline, sending: _Sending | None, *, is_edited: bool
) -> Iterator[Row]:
    """What becomes of these, but for those that are sent: what broker and ingestion say of them comes later."""
    from jobs.ingestion.documents import ANY_TOPIC
    from metering.vocabulary import Reason

    # What a script prints is an event in structured mode, of which headers would say otherwise.
    headers = [() if is_edited else letter.headers for letter, _ in several]
    received_at = [letter.first_received_at for letter, _ in several]
    # Back to where the record came from, unless nobody reads that any more, or it was the wrong topic.
    read = offline.config.topics
    topics = [
        letter.place.topic if letter.place.topic in read and letter.reason != Reason.WRONG_TOPIC else ANY_TOPIC
        for letter, _ in several
    ]
    marks = [letter.reception_mark for letter, _ in several]
    verdicts = offline.verdicts([event for _, event in several], received_at, marks, headers, topics)
    for (letter, event), own, topic, verdict in zip(several, headers, topics, verdicts, strict=True):
        if letter.problem is not None:
            yield _row(letter, Fate.IMPOSSIBLE, letter.problem)
        elif not event:
            yield _row(letter, Fate.LEFT_OUT)
        elif verdict.reason is not None:
            yield _row(letter, Fate.REJECTED, f"{verdict.reason}: {verdict.violation}", event)
        elif sending is None:
            yield _row(letter, Fate.ACCEPTED, None, event)
        else:
            sending.send(topic or offline.config.topic_of_record(verdict.types), letter, event, own)


def _row(letter: Letter, fate: Fate, text: str | None = None, event: bytes | None = None) -> Row:
    from cli.dead_letter_rows import text_of

    where = letter.place._asdict()
    return {**where, "reason": letter.reason, "fate": fate, "detail": text, "value": text_of(event)}


def _counted(rows: Iterator[Row], fates: Counter[Fate]) -> Iterator[Row]:
    """The rows except those that were sent, which are only counted."""
    for row in rows:
        fate = Fate(str(row["fate"]))
        fates[fate] += 1
        if fate is not Fate.SENT:
            yield row

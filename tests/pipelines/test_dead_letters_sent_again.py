"""Which dead letters are sent again, what a program makes of them and what is said of each: no broker, real tables."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.dead_letter_rows import DeadLetterQuery, dead_letter_rows, with_earlier_name
from cli.journal_table import count_redriven
from cli.redrive.command import _rows
from cli.redrive.letters import DeadLetters, Letter
from cli.redrive.offline import Offline
from cli.redrive.script import edited, line_of
from deployment.errors import CannotRun
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.config_groups import Backfill
from jobs.runtime.kafka.replay_mark import Rejected
from metering.instants import rfc3339
from tests.pipelines.test_journal_listings import T0, commit, journal, record

ANY = DeadLetterQuery()
NOW = T0 + timedelta(days=400)


def letters(tables: Path, query: DeadLetterQuery = ANY) -> DeadLetters:
    return DeadLetters(journal(tables), query)


def again(lsn: int, first: int, disposition: str, **more: Any) -> Any:
    """A row that replays the dead letter `first` (its offset is its lsn)."""
    said = {
        "replay_mark": f"events/0/{first}",
        "replays_lsn": first,
        "first_received_at": T0 + timedelta(seconds=first),
    }
    return record(lsn, disposition, "malformed" if disposition == "rejected" else None, **{**said, **more})


def script(folder: Path, body: str) -> Path:
    file = folder / "edit.py"
    file.write_text(f"#!/usr/bin/env python3\nimport json, sys\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def event(**more: Any) -> bytes:
    at = rfc3339(T0)
    envelope = {
        "specversion": "1.0",
        "type": "source.heartbeat.v1",
        "source": "s",
        "id": "1",
        "subject": "a",
        "time": at,
    }
    return json.dumps({**envelope, "data": {}, **more}).encode()


def said(
    tables: Path, edit: Path | None = None, config: IngestionConfig | None = None
) -> dict[int, tuple[str, str | None]]:
    """By offset what a dry run says: fate, and why."""
    rows = _rows(letters(tables), edit, Offline(config or IngestionConfig(), lambda: NOW), None, lambda _: None)
    return {int(str(row["offset"])): (str(row["fate"]), row["detail"]) for row in rows}  # type: ignore[misc]


def test_each_unreplayed_dead_letter_is_sent_with_its_first_mark_and_last_content(
    tmp_path: Path,
) -> None:
    commit(tmp_path, record(1, "rejected", "malformed"), record(2, "rejected", "malformed"), record(3, "accepted"))
    commit(tmp_path, again(4, 1, "accepted"), again(5, 2, "rejected", value=b"later"))
    commit(tmp_path, again(6, 1, "duplicate"), record(7, "rejected", "future"))
    found = letters(tmp_path)
    assert [(one.place.offset, one.first.offset, one.value) for one in found] == [(5, 2, b"later"), (7, 7, b"{}")]
    assert [one.first_received_at for one in found] == [T0 + timedelta(seconds=2), T0 + timedelta(seconds=7)]
    assert found.back == [(Rejected("events", 0, 1), "malformed", 4)]
    assert list(found) == list(found)
    assert [one.place.offset for one in letters(tmp_path, DeadLetterQuery(reasons=("future",)))] == [7]


def test_a_listing_shows_which_dead_letters_were_redriven(tmp_path: Path) -> None:
    commit(tmp_path, record(1, "rejected", "malformed"), record(2, "rejected", "malformed"))
    commit(tmp_path, again(3, 1, "rejected"), again(4, 1, "accepted", partition=2), again(5, 2, "rejected"))
    rows = list(dead_letter_rows(journal(tmp_path), ANY))
    assert [(row["offset"], row["replay_mark"], row["replayed_as"]) for row in rows] == [
        (1, None, 4),
        (2, None, None),
        (3, "events/0/1", 4),
        (5, "events/0/2", None),
    ]
    assert [with_earlier_name(row)["came_back_as"] for row in rows] == [4, None, 4, None], "as 0.2.0 names it"
    assert count_redriven(journal(tmp_path)) == {("events", 2): 1}


def test_a_dead_letter_that_cannot_be_redriven_is_listed_with_the_reason(tmp_path: Path) -> None:
    commit(
        tmp_path,
        record(1, "rejected", "invalid_catalog_change", topic="catalog.prices"),
        record(2, "rejected", "too_large", None),
        record(3, "rejected", "malformed", replay_mark="events/0/99"),
        record(4, "rejected", "skipped", event()),
    )
    found = said(tmp_path)
    assert {offset: fate for offset, (fate, _) in found.items()} == {
        **dict.fromkeys((1, 2, 3), "impossible"),
        4: "would_be_accepted",
    }
    for offset, what in ((1, "weir catalog apply"), (2, "has no value"), (3, "weir produce")):
        assert what in str(found[offset][1])


def test_it_is_validated_as_of_its_first_reception_by_the_configuration_of_ingestion(tmp_path: Path) -> None:
    old = timedelta(days=34)
    commit(
        tmp_path,
        record(1, "rejected", "malformed", event(time=rfc3339(T0 - old))),
        record(2, "rejected", "too_old", event(time=rfc3339(T0 - 2 * old))),
        record(3, "rejected", "malformed", b"{"),
        again(4, 3, "rejected", value=event(time=rfc3339(T0 - old)), received_at=T0 + 3 * old),
        # No broker said when these were received: it is when they come.
        record(5, "rejected", "unstamped", event()),
        again(6, 5, "rejected", value=event(time=rfc3339(NOW)), first_received_at=None),
        record(7, "rejected", "unstamped", event()),
    )
    found = said(tmp_path)
    assert {offset: fate for offset, (fate, _) in found.items()} == {
        1: "would_be_accepted",
        2: "would_be_rejected",
        4: "would_be_accepted",
        6: "would_be_accepted",
        7: "would_be_rejected",
    }
    assert str(found[2][1]).startswith("too_old: accept window /time")


def test_a_dead_letter_of_the_past_is_redriven_with_its_mark_of_the_first_reception(tmp_path: Path) -> None:
    of_past = {"received_at": NOW, "reception_mark": rfc3339(T0)}
    commit(
        tmp_path,
        record(1, "rejected", "malformed", event(source="history/1"), **of_past),
        record(2, "rejected", "malformed", event(source="gateway/1"), **of_past),
        # What it was when it came, stays when nobody trusts its source any more.
        record(3, "rejected", "invalid_model", event(source="gateway/1"), first_received_at=T0, **of_past),
    )
    assert [one.reception_mark for one in letters(tmp_path)] == [rfc3339(T0)] * 3
    trusting = IngestionConfig(backfill=Backfill(sources=("history/*",), accept_past_seconds=500 * 86_400))
    fates = {offset: fate for offset, (fate, _) in said(tmp_path, config=trusting).items()}
    assert fates == {1: "would_be_accepted", 2: "would_be_rejected", 3: "would_be_accepted"}


def test_a_program_may_correct_or_skip_each_dead_letter(tmp_path: Path) -> None:
    broken = [event(time="never"), b"\xff{", b'{"two": "lines",\n"key": 1}']
    commit(tmp_path, *[record(lsn, "rejected", "malformed", value) for lsn, value in enumerate(broken, start=1)])
    edit = script(
        tmp_path,
        "for line in sys.stdin:\n"
        "    said = json.loads(line)\n"
        f"    event = json.loads(said['value']) if said['offset'] == 1 else None\n"
        f"    print(json.dumps({{**event, 'time': {rfc3339(T0)!r}}}) if event else '')",
    )
    with edited(letters(tmp_path), edit) as made:
        assert [json.loads(one) if one else None for one in made] == [
            {**json.loads(event()), "time": rfc3339(T0)},
            *[None] * 2,
        ]
    assert said(tmp_path, edit) == {1: ("would_be_accepted", None), **dict.fromkeys((2, 3), ("left_out", None))}


def test_a_script_gets_the_place_of_a_record_its_reason_and_its_bytes() -> None:
    place = Rejected("events", 2, 17)
    letter = Letter(place, place, T0, T0, "not_utf8", "JSON: bad", b"k", b"\xff{")
    assert json.loads(line_of(letter)) == {
        "topic": "events",
        "partition": 2,
        "offset": 17,
        "received_at": rfc3339(T0),
        "reason": "not_utf8",
        "violation": "JSON: bad",
        "key": "k",
        "value": "\\xff{",
        "value_base64": "/3s=",
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("print('{}'); sys.exit(3)", r"ended with status 3 after 1 lines, at events/0/2. Nothing was sent"),
        ("print('{}')", r"printed 1 lines for 3 dead letters.*Nothing was sent"),
        ("print('\\n' * 9)", r"printed 10 lines for 3 dead letters"),
    ],
)
def test_a_failing_program_stops_the_redrive_and_names_the_record(tmp_path: Path, body: str, why: str) -> None:
    commit(tmp_path, *[record(lsn, "rejected", "malformed", event()) for lsn in (1, 2, 3)])
    with pytest.raises(CannotRun, match=why):
        said(tmp_path, script(tmp_path, body))


@pytest.mark.parametrize("prepare", [lambda file: file.unlink(), lambda file: file.chmod(0o600)])
def test_a_missing_program_is_refused_with_advice(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    commit(tmp_path, record(1, "rejected", "malformed", event()))
    file = script(tmp_path, "")
    prepare(file)
    with pytest.raises(CannotRun, match=r"cannot be run: .*chmod \+x"):
        said(tmp_path, file)

"""`python -m tests.simulation.mends [NAME …]`: take each mend out, let the simulator find the fault, keep its history.

Each fault is looked for in a copy of the source, seed after seed, and the history that shows it is made short. It goes
to `found/NAME.txt`, where `test_found` runs it: without the mend it is red. Decision 0025 lists what was found.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.copying import copy_source
from tests.mutants.planted import Mutant

FOUND = Path(__file__).with_name("found")
OF_FOUND = "tests/simulation/test_found.py::test_a_history_that_showed_a_fault_ends_as_it_must"
JOINS, INGESTION, DELTA = "jobs/joins", "jobs/ingestion", "jobs/runtime/delta"


def _mend(name: str, file: str, sound: str, broken: str) -> Mutant:
    return Mutant(name, file, sound, broken, (f"{OF_FOUND}[{name}]",))


MENDS = (
    _mend(
        "F of a commit that goes on behind a chunk",
        f"{JOINS}/frontier.py",
        "is_held = pl.lit(ends_table) |",
        "is_held = pl.lit(True) |",
    ),
    _mend(
        "a table that was rolled back and has grown is read on",
        f"{DELTA}/upstream.py",
        "if stored.row not in (None, row):",
        "if False:",
    ),
    _mend(
        "the log of an open table is never compared",
        f"{DELTA}/upstream.py",
        "        if state is Log.SAME:\n            return\n",
        "        return\n",
    ),
    _mend(
        "usage is priced from version tables made anew",
        f"{JOINS}/sink.py",
        "        self._catalog.refuse_other_than(self._usage)\n",
        "",
    ),
    _mend(
        "a hole is believed without a second look",
        f"{INGESTION}/event_topics.py",
        "topic.absent.prove(topic.ledger.gaps(self._of(topic, records)))",
        "{p: sum(gap.end - gap.first for gap in topic.ledger.gaps(records) if gap.partition == p) for p in range(9)}",
    ),
    _mend(
        "F does not wait for a partition that was added",
        f"{INGESTION}/ledger.py",
        "            self._reception.add(partition)\n",
        "",
    ),
    _mend(
        "F steps back with a broker's clock",
        f"{INGESTION}/received.py",
        'stamp.cum_max().over("partition")',
        "stamp",
    ),
    _mend(
        "a repeat after an hour is billed again",
        f"{INGESTION}/identity_index.py",
        "it is read when needed.\n            segment.drop()",
        "it is read when needed.\n            del self._segments[segment.number]",
    ),
    _mend(
        "identities are forgotten with the driver",
        f"{INGESTION}/sink.py",
        "        self._index.restore(self._writer.next_lsn, self._events.frontier())\n",
        "        self._index.restore(1, None)\n",
    ),
    _mend(
        "a plan that was announced and taken back prices usage",
        f"{JOINS}/catalog_versions.py",
        'newest=("lsn",),',
        'newest=("effective_us", "lsn"),',
    ),
    _mend(
        "a larger gap leaves stored sessions apart",
        "jobs/sessionization/fold.py",
        "neighbours=NEIGHBOURS if taken.is_wider else",
        "neighbours=",
    ),
    _mend(
        "a changed timeout decides the past",
        f"{JOINS}/decide.py",
        "history = stored or (present,)\n",
        "history = (EffectiveRules(1, present.rules),)\n",
    ),
    _mend(
        "a lowered timeout loses rows that wait",
        "jobs/joins/recovery.py",
        "    if past.waiting_from is not None:\n",
        "    if False:\n",
    ),
    _mend(
        "a longer grace opens windows that were shown closed",
        "jobs/runtime/postgres/rules_table.py",
        "if self._last is None or self._job.closes_after is None:",
        "if True:",
    ),
    _mend(
        "one row twice hides one that is missing",
        "jobs/runtime/batch.py",
        "return self.is_chain and self.lowest",
        "return self.lowest",
    ),
    _mend(
        "a position is not moved with its data",
        "jobs/runtime/postgres/sink.py",
        "            self._move(cursor, after, frontier)\n            self._record",
        "            self._record",
    ),
    _mend(
        "a commit whose outcome is unknown is made again",
        f"{DELTA}/table.py",
        "            self._put(files, {**self._fence(), **transactions})\n        else:\n",
        "            try:\n"
        "                self._put(files, {**self._fence(), **transactions})\n"
        "            except Exception:\n"
        "                self._at = int(self._followed.refresh().version())\n"
        "                again = [self.folder.write(stored, _logged_at(stored), self.statistics)] if files else []\n"
        "                self._put(again, {**self._fence(), **transactions})\n"
        "        else:\n",
    ),
    _mend(
        "the journal doubles tokens",
        f"{INGESTION}/journal_rows.py",
        "    complete = rows.with_columns(\n",
        "    rows = rows.with_columns(pl.col('input_tokens') * 2)\n    complete = rows.with_columns(\n",
    ),
    _mend(
        "received_at is cut to the minute",
        f"{INGESTION}/received.py",
        'stamp.cum_max().over("partition")',
        'stamp.cum_max().over("partition").dt.truncate("1m")',
    ),
    _mend(
        "what is configured never decides",
        "jobs/runtime/config.py",
        'return self.model_dump(mode="json", include=set(self.DECIDING))',
        'return type(self)().model_dump(mode="json", include=set(self.DECIDING))',
    ),
    _mend(
        "the meters of a batch are lost where its timeout changes",
        f"{JOINS}/sink.py",
        "self._rules.document_of(known.history, now)",
        "self._rules.value(known.history[-1].first, now)",
    ),
    _mend(
        "a straggler has another currency",
        "jobs/billing/fold.py",
        "       currency, cause, corrects_lsns::bigint[], day,",
        "       'XXX', cause, corrects_lsns::bigint[], day,",
    ),
    _mend(
        "an amount is made of a rounded quantity",
        f"{JOINS}/pricing.py",
        "pc.multiply(quantity, unit_price),",
        "pc.multiply(pc.round(quantity, 2), unit_price),",
    ),
    _mend(
        "a meter that is declared no more is forgotten in the sums",
        "jobs/billing/sums.py",
        "strict=False)), effective).collect()",
        'strict=False)), effective).filter(pl.col("meter").is_in(list(effective.rules["late_policy"]))).collect()',
    ),
    _mend(
        "what was not reported is counted as 0",
        f"{JOINS}/quantities.py",
        "reported = pl.col(quantity_of(meter.sums))\n",
        "reported = pl.col(quantity_of(meter.sums)).fill_null(0)\n",
    ),
    _mend(
        "a quantity has the price of another meter",
        f"{JOINS}/pricing.py",
        "units = prices_of(metered.filter(has_price), conditional, prices, attributes, seen_from)",
        "units = prices_of(metered.filter(has_price), conditional, prices, attributes, seen_from)"
        '.with_columns(pl.col("version_lsn", "unit_price").first().over("row"))',
    ),
    _mend(
        "a correction of units that another meter bills is forgotten",
        "jobs/audit/bills/proof.py",
        "for part in (corrected, contained))",
        "for part in (corrected,))",
    ),
    _mend(
        "a request that leaves its pair stays on the day of the completion",
        "jobs/audit/recompute/corrections.py",
        'occurred=pl.col("occurred") & pl.col("had_day")',
        'occurred=pl.col("occurred")',
    ),
    _mend(
        "a request and an answer of years before are one where they are backfilled at once",
        "jobs/audit/recompute/restatements.py",
        "(reports_more | is_parted)",
        "reports_more",
    ),
)
"""Faults of money that an attack found, bugs that it takes more than one driver to see, and some that only an
oracle sees that believes nothing the product wrote."""


def kept_mends() -> tuple[Mutant, ...]:
    """Those of which a history is kept: `make mutants` takes each out, and its history must be red."""
    return tuple(mend for mend in MENDS if (FOUND / f"{mend.name}.txt").exists())


def main() -> int:
    """Look for the faults of these names, or for all."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mends", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--histories", type=int, default=500)
    options = parser.parse_args()
    chosen = [mend for mend in MENDS if not options.names or mend.name in options.names]
    missed = 0
    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weir-mends-") as scratch:
        copy = Path(scratch) / "source"
        copy_source(copy)
        for mend in chosen:
            file, sound = copy / mend.file, (copy / mend.file).read_text()
            if sound.count(mend.sound) != 1:
                raise ValueError(f"{mend.name}: its text does not stand once in {mend.file}")
            file.write_text(sound.replace(mend.sound, mend.broken))
            found = _look(copy, FOUND.resolve() / f"{mend.name}.txt", options.histories)
            file.write_text(sound)
            missed += not found
            print(f"{'found ' if found else 'MISSED'} {mend.name}: {found}", flush=True)
    return 1 if missed else 0


def _look(copy: Path, to: Path, histories: int) -> str:
    """What was found in a copy with a fault: how many histories it took, and of how many steps the short one is."""
    begun = time.monotonic()
    searched = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--stop", "--histories", str(histories), "--keep", str(to)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if searched.returncode == 0:
        return ""
    said = [line for line in searched.stdout.splitlines() if line.startswith("shortest: ")]
    if not said:
        raise RuntimeError(searched.stdout + searched.stderr)
    return f"{said[0].removeprefix('shortest: ')}, {time.monotonic() - begun:.0f} s in all"


if __name__ == "__main__":
    sys.exit(main())

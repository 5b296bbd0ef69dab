"""What a run has to say, as one JSON object in bench/results/."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

from tests.faults.alerts import AlertsVerdict
from tests.faults.plan import Fault, bound
from tests.faults.stage import DriverRows
from tests.faults.verdict import Verdict
from tests.faults.watching import Stall

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
Result = dict[str, Any]


def result_of(
    *,
    began_at: datetime,
    seed: int,
    tables: str,
    driver_rows: DriverRows,
    struck: Sequence[Fault],
    missed: Sequence[Fault],
    left_out: Sequence[str],
    answers_lost: dict[str, int],
    records: int,
    poison: int,
    posted: int,
    verdict: Verdict,
    stall: Stall,
    commits: dict[str, int],
    alerts: AlertsVerdict | None,
    planted: dict[str, bool],
) -> Result:
    """The result. It says nothing of the machine that it was found on but how the faults went."""
    return {
        "began_at": began_at.isoformat(timespec="seconds"),
        "commit": _commit(),
        "seed": seed,
        "tables": tables,
        "driver_rows": dict(driver_rows),
        "faults": len(struck),
        "faults_by_kind": dict(sorted(Counter(f"{fault.kind}: {fault.target}" for fault in struck).items())),
        "found_nobody": dict(sorted(Counter(f"{fault.kind}: {fault.target}" for fault in missed).items())),
        "left_out": list(left_out),
        "answers_lost": answers_lost,
        "records": records,
        "poison_records": poison,
        "posted_records": posted,
        "commits_meanwhile": commits,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "wrong": verdict.wrong,
        "failures": verdict.failures,
        "differences": list(verdict.differences),
        "failures_per_fault_below": bound(len(struck), verdict.failures),
        "longest_stall": asdict(stall),
        "alerts": None if alerts is None else asdict(alerts),
        "planted_and_seen": planted,
        "passed": verdict.failures == 0
        and all(planted.values())
        and not (alerts is not None and (alerts.wrong or alerts.missed)),
    }


def summary(result: Result) -> str:
    """The result in a sentence or two."""
    alerts = result["alerts"] or {"right": [], "wrong": [], "missed": []}
    return (
        f"{result['faults']} faults, {result['records']} records: {result['lost']} lost, {result['doubled']} doubled, "
        f"{result['wrong']} wrong; longest stall {result['longest_stall']['seconds']:.0f} s; alerts: "
        f"{len(alerts['right'])} right, wrong {alerts['wrong'] or 'none'}, missed {alerts['missed'] or 'none'}."
    )


def said_of(results: Sequence[Result]) -> str:
    """What several runs prove together, in the words of the guide."""
    faults, records, lost, doubled, wrong = (
        sum(result[name] for result in results) for name in ("faults", "records", "lost", "doubled", "wrong")
    )
    said = f"{faults} faults in {len(results)} runs, {records:,} records: {lost} lost, {doubled} doubled, {wrong} wrong"
    below = bound(faults, lost + doubled + wrong)
    if below is None:
        return said
    # Rounded up: a bound that is too low would be none.
    return f"{said}; so, with 95 % confidence, fewer than {ceil(below * 1000) / 10} % of such faults cost anything"


def kept() -> list[Result]:
    """The results that the repository has, in the order of their runs."""
    return [json.loads(file.read_text()) for file in sorted(RESULTS.glob("faults-*.json"))]


def write(result: Result) -> Path:
    """Keep it; gives the file, below the repository."""
    began_at = datetime.fromisoformat(result["began_at"]).astimezone(UTC)
    file = RESULTS / f"faults-{began_at:%Y-%m-%dT%H%M%SZ}.json"
    file.write_text(json.dumps(result, indent=2) + "\n")
    return file.relative_to(ROOT)


def _commit() -> str:
    """Of the source that ran; marked where that was changed since."""
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()

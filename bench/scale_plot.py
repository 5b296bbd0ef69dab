"""The plot of docs/explanation/scale.md: who used the CPU-seconds of `make scale`, by application and executors.

`python -m bench.scale_page` draws it from the runs that are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import RESULTS

COLUMNS = ("driver", "driver_java", "executor_java", "workers", "database")
ROWS_PER_EVENT = {"ingestion": 1.0, "joins": 1.0, "billing": 342_428 / 720_000}
"""Rows that a job reads of each event, in the recorded traffic."""
PLOT = Path("docs/assets/scale.svg")
USED_BY = dict(zip(COLUMNS[:-1], ("driver", "its Java", "executors' Java", "tasks in Python"), strict=True))
"""Who shows as a part of a bar. Postgres has its own cores."""
COLOURS = ("#d1495b", "#edae49", "#66a182", "#2e86ab")
GREY = "#808080"
LEFT, WIDTH, ROW, BAR = 170, 480, 22, 15
"""Pixels: of the names, of the longest bar, from one bar to the next, and of a bar's height."""


def cases_of(run: Mapping[str, Any], job: str) -> list[Mapping[str, Any]]:
    """What a run measured of a job. The first runs measured billing alone, and did not say it."""
    return [case for case in run["measured"] if case.get("job", "billing") == job]


def plot(runs: Sequence[Mapping[str, Any]]) -> str:
    """An SVG with a bar for each number of executors in the last run of each application: CPU-seconds per million."""
    cases = [(job, case) for job in ROWS_PER_EVENT for case in _last(runs, job)]
    scale = WIDTH / max(sum(_parts(case)) for _, case in cases)
    bars = [line for number, (job, case) in enumerate(cases) for line in _bar(number, job, case, scale)]
    height = ROW * (len(cases) + 2)
    size = f'width="{LEFT + WIDTH + 50}" height="{height}" viewBox="0 0 {LEFT + WIDTH + 50} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{GREY}">'
    return "\n".join((head, *_legend(), *bars, "</svg>", ""))


def _last(runs: Sequence[Mapping[str, Any]], job: str) -> list[Mapping[str, Any]]:
    return next(found for run in reversed(runs) if (found := cases_of(run, job)))


def _parts(case: Mapping[str, Any]) -> list[float]:
    return [float(case["cpu_seconds_per_million_rows"][name]) for name in USED_BY]


def _legend() -> list[str]:
    place = [LEFT + number * 120 for number in range(len(USED_BY))]
    boxes = [f'<rect x="{x}" y="4" width="12" height="12" fill="{c}"/>' for x, c in zip(place, COLOURS, strict=True)]
    texts = [f'<text x="{x + 17}" y="14">{name}</text>' for x, name in zip(place, USED_BY.values(), strict=True)]
    return [*boxes, *texts]


def _bar(number: int, job: str, case: Mapping[str, Any], scale: float) -> list[str]:
    y, x, executors = ROW * (number + 1) + 8, float(LEFT), case["executors"]
    who = f"{executors} executor{'s' if executors > 1 else ''}" if executors else "alone"
    found = [f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{job}, {who}</text>']
    for used, colour in zip(_parts(case), COLOURS, strict=True):
        found.append(f'<rect x="{x:.1f}" y="{y}" width="{used * scale:.1f}" height="{BAR}" fill="{colour}"/>')
        x += used * scale
    return [*found, f'<text x="{x + 6:.1f}" y="{y + 12}">{sum(_parts(case)):.1f}</text>']


def kept_runs() -> list[dict[str, Any]]:
    """All runs of `make scale` that are kept, the oldest first."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("scale-*.json"))]

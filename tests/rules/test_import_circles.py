"""Modules import each other in one direction only, also within functions."""

from __future__ import annotations

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from grimp import build_graph

ROOT = Path(__file__).parents[2]
ROOMS = (
    *("metering", "jobs", "catalog", "deployment", "webhooks", "api", "cli", "laptop", "traffic", "monitoring"),
    "dashboard",
)


def refuse_circles(imports: dict[str, set[str]]) -> None:
    TopologicalSorter(imports).prepare()


def test_no_modules_import_each_other_in_a_circle() -> None:
    """What is imported for annotations only does not count: it is not there when the program runs."""
    graph = build_graph(*ROOMS, "charts", "reference", "weir_client", exclude_type_checking_imports=True)
    refuse_circles({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})


def test_a_circle_is_found() -> None:
    with pytest.raises(CycleError):
        refuse_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}})


@pytest.mark.parametrize("room", ["jobs.runtime.job", "jobs.settings.meters", "jobs.journal.catalog_problems"])
def test_a_job_as_a_value_needs_neither_kafka_nor_postgres(room: str) -> None:
    loaded = f"import sys, {room}; print(*(name for name in sys.modules if name in ('psycopg', 'confluent_kafka')))"
    found = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []

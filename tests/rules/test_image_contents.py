"""What goes into the image: the parts that run on a cluster, and of the laptop only those of the quickstart."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest
from grimp import ImportGraph

ROOTS = ("metering", "jobs", "catalog", "deployment", "cli", "laptop", "traffic", "monitoring", "dashboard")
IGNORED = (Path(__file__).parents[2] / ".dockerignore").read_text(encoding="utf-8").splitlines()
STARTED = {"laptop.quickstart", "laptop.class_archive", "laptop.class_training", "laptop.jars", "laptop.java"}
"""What the chart and the Dockerfile start."""

LAPTOP_ONLY = {"cli.main", "cli.stack", "cli.demo"}
"""Commands that start Weir on one machine; `cli.main` says so where they are missing."""


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    return grimp.build_graph(*ROOTS)


def test_the_image_has_every_part_that_runs_on_a_cluster() -> None:
    assert {line[1:] for line in IGNORED if line[1:] in ROOTS} == {*ROOTS} - {"laptop"}


def test_of_the_laptop_the_image_has_what_it_needs_and_no_more(graph: ImportGraph) -> None:
    elsewhere = {m for m in graph.modules if not m.startswith("laptop") and m not in LAPTOP_ONLY}
    needed = {*STARTED}
    for module in elsewhere | STARTED:
        needed |= {found for found in graph.find_upstream_modules(module) if found.startswith("laptop.")}
    held = {line[1:-3].replace("/", ".") for line in IGNORED if line.startswith("!laptop/") and line.endswith(".py")}
    assert held - {"laptop.__init__"} == needed

"""Migrations are one chain: two with one number, or two that follow the same one, would stop every start."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from jobs.runtime.postgres import migrations

VERSIONS = sorted((Path(migrations.__path__[0]) / "versions").glob("*.py"))


def test_each_migration_follows_the_one_before_it() -> None:
    found = []
    for file in VERSIONS:
        text = file.read_text(encoding="utf-8")
        names = dict(re.findall(r'^(revision|down_revision) = "?(\w+)"?$', text, re.MULTILINE))
        assert file.name.startswith(f"{names['revision']}_")
        found.append(names)
    assert found[0]["down_revision"] == "None"
    assert [(a["revision"], b["down_revision"]) for a, b in pairwise(found)] == [
        (a["revision"], a["revision"]) for a in found[:-1]
    ]

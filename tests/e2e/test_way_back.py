"""A way back: the release before goes on from what this one has metered, as long as nothing of the new is turned on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE, TABLES_VARIABLE, Stack, running_stack
from jobs.runtime.postgres.downgrade import OLDEST
from laptop.database import embedded_database
from laptop.folders import Folders

HERE = Path(__file__).parents[2]
BEFORE = "c0ea1659a8df5a5496023fa3c1a3e7bcc0f20fd6"
"""The last commit whose schema is OLDEST."""
CONFIG: dict[str, dict[str, Any]] = {"joins": {"completion_timeout_seconds": 120}, "billing": {"grace_seconds": 300}}
NO_BATCHES = {"ingestion": {"batches": False}}
"""An array is a dead letter to the release before. As a batch of events it would stop the way back for 35 days."""
EVENTS = 1_500


@dataclass(frozen=True)
class Release:
    """A version, by its code, on one data folder."""

    code: Path
    data_dir: Path

    def weir(self, *arguments: str, exit_status: int = 0) -> str:
        """What a `weir` command prints, which ends so."""
        return self._run("cli.main", *arguments, "--data-dir", str(self.data_dir), exit_status=exit_status)

    def weir_on(self, stack: Stack, *arguments: str) -> str:
        """What a `weir` command prints on a stack of another version, whose file it cannot read."""
        where = {
            KAFKA_VARIABLE: stack.kafka_bootstrap,
            POSTGRES_VARIABLE: stack.postgres_url,
            TABLES_VARIABLE: str(stack.tables),
        }
        return self._run("cli.main", *arguments, variables=where)

    def migrate(self, url: str, *arguments: str) -> str:
        """What `python -m jobs migrate` prints."""
        where = {POSTGRES_VARIABLE: url, TABLES_VARIABLE: str(Folders(self.data_dir).tables)}
        return self._run("jobs", "migrate", *arguments, variables=where)

    def _run(
        self, module: str, *arguments: str, exit_status: int = 0, variables: Mapping[str, str] | None = None
    ) -> str:
        command = [sys.executable, "-m", module, *arguments]
        env = {**os.environ, "PYTHONPATH": str(self.code), **(variables or {})}
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=900, cwd=self.code, env=env
        )
        assert ended.returncode == exit_status, f"{self.code} {arguments}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    @contextmanager
    def running(self, **jobs: dict[str, Any]) -> Iterator[Release]:
        """Its stack runs within the block, with these configurations of jobs and CONFIG."""
        config = self.data_dir.with_name("stack.json")
        config.write_text(json.dumps({"jobs": CONFIG | jobs}))
        try:
            self.weir("up", "--detach", "--config", str(config))
            yield self
        finally:
            self.weir("down")


def code_of(commit: str, folder: Path) -> Path:
    """The files of that commit."""
    folder.mkdir()
    archive = subprocess.run(["git", "-C", str(HERE), "archive", commit], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def schema_of(url: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT version_num FROM weir.alembic_version").fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_release_before_goes_on_from_what_this_one_has_metered(tmp_path: Path) -> None:
    data_dir = tmp_path / "weir"
    before = Release(code_of(BEFORE, tmp_path / "before"), data_dir)
    now = Release(HERE, data_dir)
    truths = {seed: tmp_path / f"{seed}.json" for seed in (21, 22, 23)}

    def sends(release: Release, seed: int) -> None:
        """Traffic that the release before has generated; nobody waits until it is read."""
        traffic = ("traffic", "--events", str(EVENTS), "--seed", str(seed), "--truth", str(truths[seed]))
        if release is before:
            before.weir(*traffic)
        else:
            before.weir_on(running_stack(data_dir), *traffic)

    def has_billed_all(release: Release) -> None:
        """It meters what was left unread and open, and all traffic is billed."""
        release.weir("drain", "--include-waiting", "--timeout", "600")
        *earlier, last = (known for known in truths.values() if known.exists())
        release.weir("compare", str(last))
        for known in earlier:
            # Later traffic repeats some malformed records byte by byte, and nothing else.
            compared = release.weir("compare", str(known), exit_status=1)
            assert "0 lost, 0 duplicated, 0 wrong in the last digit; 1 checks DIFFER." in compared, compared
            assert "records with another fate: 0 expected, 0 found, " in compared, compared

    with before.running():
        sends(before, 21)
        has_billed_all(before)
        sends(before, 22)
    with now.running(**NO_BATCHES):
        # No audit yet: it would give late prices, which the truth of live traffic does not have.
        has_billed_all(now)
        sends(now, 23)
    with embedded_database(Folders(data_dir).database) as url:
        assert schema_of(url) > OLDEST
        now.migrate(url, "--down-to", OLDEST)
        assert schema_of(url) == OLDEST
    with before.running():
        has_billed_all(before)
        before.weir("audit")

"""Writes the pages of docs/reference that are made of several parts of Weir: `python -m reference.render`."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from api.openapi import document
from jobs.runtime.postgres.schema import migrate
from laptop.database import embedded_database
from reference.alerts import alerts_page
from reference.chart import chart_page
from reference.commands import commands_page
from reference.configuration import configuration_page
from reference.metrics import metrics_page
from reference.tables import stored_columns, tables_page
from reference.topics import topics_page

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


def rendered() -> dict[Path, str]:
    """Every page with what belongs in it."""
    return {
        FOLDER / "cli.md": commands_page(),
        FOLDER / "configuration.md": configuration_page(),
        FOLDER / "metrics.md": metrics_page(),
        FOLDER / "alerts.md": alerts_page(),
        FOLDER / "chart.md": chart_page(),
        FOLDER / "topics.md": topics_page(),
        FOLDER / "openapi.json": json.dumps(document(), indent=2) + "\n",
    }


def rendered_tables() -> dict[Path, str]:
    """The page of the tables, which needs a database to look at: one is made and thrown away."""
    with TemporaryDirectory() as folder, embedded_database(Path(folder)) as url:
        migrate(url)
        return {FOLDER / "tables.md": tables_page(stored_columns(url))}


if __name__ == "__main__":
    for path, content in (rendered() | rendered_tables()).items():
        path.write_text(content, encoding="utf-8")

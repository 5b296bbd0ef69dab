"""Writes what is generated from the declarations of this folder: `python -m monitoring.render`."""

from __future__ import annotations

from pathlib import Path

from monitoring.alerts import GROUPS
from monitoring.grafana import dashboard
from monitoring.rule_file import Part, chart_rules, rule_file

RELEASE = {"namespace": "RELEASE_NAMESPACE", "release": "RELEASE_INSTANCE"}
RELEASE_RUNBOOK = "RELEASE_RUNBOOK"
"""What the chart replaces in its copy of the rules; it leaves out those that need a part that is disabled."""

NOT_EVERYWHERE = (Part.DATABASE_DISK, Part.API, Part.ANALYTICS)
"""Components that may be missing where the rule file is loaded by hand."""

FOLDER = Path(__file__).parent
CHART_FILES = FOLDER.parent / "charts" / "weir" / "files"


def rendered() -> dict[Path, str]:
    """Every generated file with what belongs in it. The chart has copies: a chart cannot read outside its folder."""
    grafana = dashboard()
    return {
        FOLDER / "rules" / "weir.rules.yaml": rule_file(GROUPS, disabled=NOT_EVERYWHERE),
        FOLDER / "grafana" / "weir.json": grafana,
        CHART_FILES / "weir.rules.json": chart_rules(GROUPS, RELEASE_RUNBOOK, RELEASE),
        CHART_FILES / "weir.json": grafana,
    }


if __name__ == "__main__":
    for file, text in rendered().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

"""The Grafana dashboard as JSON, from the panels: sections below each other, filled from left to right."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from monitoring.panels import PANELS, Panel
from monitoring.rule_file import held_to

GRID_WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES: list[dict[str, Any]] = [
    {"name": "datasource", "type": "datasource", "query": "prometheus"},
    {
        "name": "namespace",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": "label_values(weir_build_info, namespace)", "refId": "namespace"},
        "refresh": 2,
        "includeAll": True,
        # Also what has no such label: a stack on a laptop.
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    },
    {
        "name": "release",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": 'label_values(weir_build_info{namespace=~"$namespace"}, release)', "refId": "release"},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    },
]


def dashboard() -> str:
    """The dashboard, ready to import; the data source is chosen in it."""
    return (
        json.dumps(
            {
                "uid": "weir",
                "title": "Weir",
                "tags": ["weir"],
                "editable": True,
                "schemaVersion": 39,
                "refresh": "10s",
                "time": {"from": "now-1h", "to": "now"},
                "timezone": "utc",
                "templating": {"list": VARIABLES},
                "panels": _placed(),
            },
            indent=2,
        )
        + "\n"
    )


def _placed() -> list[dict[str, Any]]:
    ids, top = count(1), 0
    placed: list[dict[str, Any]] = []
    for section, panels in PANELS.items():
        row = {"x": 0, "y": top, "w": GRID_WIDTH, "h": 1}
        placed.append(
            {"id": next(ids), "type": "row", "title": section, "collapsed": False, "gridPos": row, "panels": []}
        )
        top += 1
        width, height = (4, 4) if panels[0].is_stat else (8, 8)
        across = GRID_WIDTH // width
        for number, panel in enumerate(panels):
            line, column = divmod(number, across)
            place = {"x": column * width, "y": top + line * height, "w": width, "h": height}
            placed.append({"id": next(ids), "gridPos": place, **_panel(panel)})
        top += -(-len(panels) // across) * height
    return placed


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
    custom = {} if panel.is_stat else {"thresholdsStyle": {"mode": "off" if panel.limit is None else "line"}}
    return {
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": custom, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": held_to(expr, 'namespace=~"$namespace",release=~"$release"'),
                "legendFormat": legend,
            }
            for number, (expr, legend) in enumerate(panel.queries)
        ],
    }

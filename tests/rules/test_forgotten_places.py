"""What was made in one place and forgotten in another: a page, a command, a metric, a name in the design."""

from __future__ import annotations

import re

from cli.commands import ENTRIES
from dashboard.pages import PAGES
from monitoring import metrics
from monitoring.alerts import ALERTS
from monitoring.instruments import GaugeMetric, Metric
from tests.e2e.test_dashboard import SHOWN
from tests.pages import DOCS, ROOT, guide


def test_each_view_that_can_be_shown_is_a_page_of_its_own_name() -> None:
    views = {path.stem for path in (ROOT / "dashboard/views").glob("*.py") if "\ndef show(" in path.read_text()}
    assert {page.show.__module__.rpartition(".")[2]: path for path, page in PAGES.items()} == {
        view: view for view in views
    }


def test_each_page_is_in_the_guide_and_tested_in_a_browser() -> None:
    table = (DOCS / "how-to/dashboard.md").read_text().partition("## ")[0]
    assert set(re.findall(r"^\| (?!page )([A-Z][^|]+?) \|", table, re.MULTILINE)) == {
        page.title for page in PAGES.values()
    }
    assert set(SHOWN) == set(PAGES)


def test_each_module_of_a_command_is_a_command_and_the_guide_names_no_other() -> None:
    folder = ROOT / "cli"
    texts = {path.stem: path.read_text() for path in folder.glob("*.py") if path.stem != "main"}
    made = {name for name, text in texts.items() if re.search(rf"^(def {name}\(|{name} = typer\.)", text, re.MULTILINE)}
    of_groups = "\n".join(texts.values())
    listed = {entry.attribute for entry in ENTRIES}
    assert {name for name in made - listed if not re.search(rf"\.{name} import .*\b{name}\b", of_groups)} == set()
    names = {entry.name for entry in ENTRIES}
    assert set(re.findall(r"`weir ([a-z-]+)", guide())) <= names


def test_each_metric_is_set_or_counted_by_an_application_or_the_api() -> None:
    code = "\n".join(
        path.read_text() for folder in ("jobs", "api", "monitoring") for path in (ROOT / folder).rglob("*.py")
    )
    declared = {name: metric for name, metric in vars(metrics).items() if isinstance(metric, Metric)}
    assert {name for name in declared if not re.search(rf"\bmetrics\.{name}\b", code)} == set()


def test_each_gauge_of_the_database_is_read_there_and_no_other() -> None:
    readers = [*(ROOT / "jobs").rglob("*totals.py"), *(ROOT / "jobs").glob("*/gauges.py")]
    read = "\n".join(path.read_text() for path in readers)
    from_database = {
        name for name, metric in vars(metrics).items() if isinstance(metric, GaugeMetric) and metric.from_database
    }
    gauges = {name for name, metric in vars(metrics).items() if isinstance(metric, GaugeMetric)}
    assert {name for name in gauges if f"metrics.{name}," in read} == from_database


def test_the_design_names_only_what_exists() -> None:
    design = (DOCS / "design.md").read_text()
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", design)} - {""}
    assert {link for link in links if not (DOCS / link).exists()} == set()
    ours = [path.parent for path in ROOT.glob("*/__init__.py")]
    files = [path for root in ours for path in root.rglob("*.py")]
    known = {word for path in files for word in re.findall(r"[\w.]+", path.read_text())}
    known |= {part for word in known for part in word.split(".")} | {path.stem for path in files}
    known |= {alert.name for alert in ALERTS}
    # One name, or one with the class or table before it; what has other signs is a formula or a command.
    named = {part for word in re.findall(r"`([A-Za-z_][\w.]*)`", design) for part in word.split(".")}
    assert {name for name in named if name not in known} == set()

"""What `helm test` sends is what Weir takes; that it is billed is seen on a cluster (tests/cluster)."""

from __future__ import annotations

import importlib.util
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType

from catalog.file import load_catalog_file
from jobs.ingestion.documents import subject_of
from metering.vocabulary import EventType
from tests.chart.helm import CHART


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bill_one_event", CHART / "files" / "bill_one_event.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_catalog_is_one_that_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "catalog.json"
    file.write_text(json.dumps(script().CATALOG), encoding="utf-8")
    catalog = load_catalog_file(file)
    (account,), (price,) = catalog.accounts, catalog.prices
    assert (account.plan, account.currency) == (price.plan, price.currency)
    assert price.unit_price == Decimal("0.25")


def test_its_event_is_of_its_account_and_at_its_price() -> None:
    document = script().event(datetime(2026, 1, 31, 10, tzinfo=UTC))
    parsed = json.loads(document)
    (price,) = script().CATALOG["prices"]
    assert parsed["type"] == EventType.USAGE
    assert subject_of(document.encode()) == script().ACCOUNT.encode()
    assert parsed["data"]["model"] == price["model"]


def test_no_two_runs_send_the_same_event() -> None:
    now = datetime(2026, 1, 31, 10, tzinfo=UTC)
    first, second = (json.loads(script().event(now)) for _ in range(2))
    assert first["id"] != second["id"]
    assert first["data"]["request_id"] != second["data"]["request_id"]

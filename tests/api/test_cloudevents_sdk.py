"""CloudEvents' own SDK, as its package is: an event is the same one in every form that the SDK writes."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from uuid import uuid4

import polars as pl
import pyarrow as pa
import pytest

from jobs.ingestion.config import IngestionConfig
from jobs.runtime.kafka.headers import COLUMN, text_of
from metering.api_keys import Scope
from tests.api.serving import Server
from tests.api.test_events_in import OPENMETER, refused, usable, values
from tests.packages import python_with
from tests.pipelines.ingestion import records_of

SDK = "cloudevents==2.2.0"
PROGRAM = Path(__file__).with_name("cloudevents_process.py")


@pytest.mark.long
def test_an_event_is_the_same_one_in_every_form_that_the_sdk_writes(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mark = uuid4().hex
    account = f"Zoë & Co {mark}"
    python = python_with(tmp_path_factory.mktemp("cloudevents"), SDK)
    ran = subprocess.run([python, str(PROGRAM), account], capture_output=True, text=True, check=True, timeout=100)
    written = [(binding, headers, base64.b64decode(body)) for binding, headers, body in json.loads(ran.stdout)]
    key = usable(server, scopes=[Scope.INGEST], accounts=[account], sources=["/my app/ü"])

    refusals = 0
    for headers, body in [(headers, body) for binding, headers, body in written if binding == "http"]:
        sent = {name: value.encode("utf-8").decode("latin-1") for name, value in headers.items()}
        answer = server.request("POST", OPENMETER, body, {**sent, "Authorization": f"Bearer {key}"})
        if all(value.isascii() for value in headers.values()):
            assert (answer.status, answer.body) == (204, b"")
        else:  # 1.x writes headers as they are: nobody could tell whose usage it is
            refused(answer, 400, "percent-encoded")
            refusals += 1
    assert refusals == 1

    posted: list[tuple[dict[str, str], bytes]] = [({}, value) for value in values(server, mark)]
    produced = [(headers, body) for binding, headers, body in written if binding == "kafka"]
    records = [*posted, *produced]
    assert (len(posted), len(produced)) == (3, 4)
    table = records_of([value for _, value in records])
    texts = [text_of([(name, value.encode()) for name, value in headers.items()]) for headers, _ in records]
    table = table.set_column(table.schema.get_field_index(COLUMN), COLUMN, pa.array(texts, pa.string()))
    rows = pl.DataFrame(IngestionConfig().validator().validate(table))
    assert rows["reason"].to_list() == [None] * len(records), rows["violation"].to_list()
    assert set(rows["account"]) == {account}
    assert rows.select("identity", "content_digest").n_unique() == 1

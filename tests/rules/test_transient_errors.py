"""A broker or a store that does not answer is waited for, and its clients say so soon instead of trying for minutes."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Iterator

import obstore
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from obstore.exceptions import GenericError
from pyspark.errors import PythonException, StreamingQueryException

from jobs.runtime.delta.new_files import EXCHANGE, Folder, cleaned_up
from jobs.runtime.delta.object_store import Patience, store_of
from jobs.runtime.delta.table import open_table
from jobs.runtime.errors import Fenced, NotYet
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.kafka.topic import describe_topic
from jobs.runtime.transient_errors import transient_error_of
from jobs.streams import Table
from metering.vocabulary import Cause
from tests.clocks import HandClock

NOBODY = "127.0.0.1:1"
SHORT = Patience(request_seconds=1, retry_seconds=1)


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Variables of a store of one's own."""
    credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    for name, value in {**credentials, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "black hole"])
def test_a_topic_is_not_refused_because_no_broker_answers(listens: bool, black_hole: str) -> None:
    admin = AdminClient({**KafkaAccess(bootstrap=black_hole if listens else NOBODY).librdkafka(), "log_level": 0})
    with pytest.raises(NotYet) as found:
        describe_topic(admin, "events", Denials(), HandClock(), timeout_seconds=1.0)
    assert found.value.cause is Cause.KAFKA


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "black hole"])
def test_tables_in_a_store_that_does_not_answer_are_waited_for(
    listens: bool, black_hole: str, reach: pytest.MonkeyPatch
) -> None:
    reach.setenv("AWS_ENDPOINT_URL", f"http://{black_hole if listens else NOBODY}")
    began = time.monotonic()
    with pytest.raises(OSError, match="S3") as reading:
        open_table("s3://metering/tables", Table.JOURNAL, SHORT)
    with pytest.raises(obstore.exceptions.BaseError) as writing:
        obstore.put(store_of("s3://metering/tables", {"AWS_ALLOW_HTTP": "true"}, SHORT), "probe", b"")
    for error in (reading.value, writing.value):
        obstacle = transient_error_of(error)
        assert obstacle is not None, str(error)
        assert obstacle.cause is Cause.STORE
        assert "\n" not in str(obstacle)
    assert time.monotonic() - began < 60


def test_a_task_that_cannot_leave_its_file_in_the_store_is_waited_for(reach: pytest.MonkeyPatch) -> None:
    """Spark gives its error as text, with the traceback of the worker."""
    reach.setenv("AWS_ENDPOINT_URL", f"http://{NOBODY}")
    with pytest.raises(OSError, match="S3") as failed:
        Folder("s3://metering/tables/journal", {}).put(f"{EXCHANGE}/validated.arrow", pa.py_buffer(b"rows"))
    said = "".join(traceback.format_exception(failed.value))
    waits = transient_error_of(PythonException(said))
    assert waits is not None, said
    assert waits.cause is Cause.STORE


@pytest.mark.parametrize("store_error", [GenericError("S3 does not answer"), PermissionError("S3 refuses")])
def test_files_that_cannot_be_removed_hide_no_error(store_error: Exception) -> None:
    """The driver would wait for the store, where it is fenced."""

    def remove() -> None:
        raise store_error

    with pytest.raises(Fenced, match="another driver"), cleaned_up(remove):
        raise Fenced("another driver")
    with pytest.raises(type(store_error)), cleaned_up(remove):
        pass


def test_the_cause_of_a_wait_comes_first_in_a_truncated_message() -> None:
    where = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: "
    why = "Cannot fetch record for offset 7 in 30000 milliseconds"
    error = StreamingQueryException(f"{where * 4}java.util.concurrent.TimeoutException: {why}\n\tat org.apache.spark")
    assert why in str(transient_error_of(error))


@pytest.mark.parametrize(
    ("words", "is_transient"),
    [
        ("Status code: -1 error code: null error message: java.net.ConnectException: Connection refused", True),
        ('Operation failed: "The server is busy.", 503, GET, https://a.blob.core.windows.net/m, rId: 1', True),
        ("Status code: 503 error code: ServerBusy error message: The server is busy.", True),
        ('Operation failed: "Not authorized.", 403, HEAD, https://a.blob.core.windows.net/m, rId: 1', False),
    ],
)
def test_azures_store_is_waited_for_where_it_is_away_and_not_where_it_refuses(words: str, is_transient: bool) -> None:
    found = transient_error_of(StreamingQueryException(f"Job aborted: {words}"))
    assert (found is not None) == is_transient
    assert found is None or found.cause is Cause.STORE

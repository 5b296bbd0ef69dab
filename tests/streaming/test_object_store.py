"""Tables in an S3 store (moto): a real application reads and writes them; one that cannot fence is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from obstore.exceptions import PermissionDeniedError

from jobs.ingestion.identity_journal import JournalIdentities
from jobs.runtime.delta.table import LSN, DeltaWriter, open_table, probe_put_if_absent
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import Fenced, Refused
from jobs.streams import Table
from laptop.ports import LOOPBACK, free_port
from metering.vocabulary import EventType
from tests.pipelines.test_own_commits import NOW, POSITION, append
from tests.streaming.joins_on_store import JoinsOnStore, gives_each_outcome_once_though_killed, joins_on_store
from tests.streaming.journals import Journal, event
from tests.streaming.test_delta_writer import accounts

TABLES = "s3://metering/tables"
Key = tuple[str, str]
"""The id and the secret of an access key."""
SIGNED = "INITIAL_NO_AUTH_ACTION_COUNT=4"
"""The store checks each request but the first four: the bucket, the user, its rights and its first key are made."""
ADMINISTRATOR: Key = ("key", "secret")
DENIED = 3
"""The version of which a denying store says that it could not make it."""


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The root of tables in an empty bucket, and the variables by which every client finds it.

    Parameters are options of the server, and variables of its environment, `NAME=VALUE`.
    """
    port = free_port()
    parameters = getattr(request, "param", ())
    variables = dict(one.split("=") for one in parameters if "=" in one)
    options = [one for one in parameters if "=" not in one]
    command = [sys.executable, "-m", "tests.streaming.store_server", str(port), *options]
    with (tmp_path / "store.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": ADMINISTRATOR[0],
        "AWS_SECRET_ACCESS_KEY": ADMINISTRATOR[1],
    }.items():
        monkeypatch.setenv(name, value)
    try:
        patience = Config(retries={"max_attempts": 10, "mode": "standard"})
        boto3.client("s3", config=patience).create_bucket(Bucket="metering")
        yield TABLES
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def use_key(store: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Key], None]:
    """Puts a key into the environment, where every client of the store finds it."""

    def use(key: Key) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key[1])

    return use


@pytest.fixture
def next_key(use_key: Callable[[Key], None]) -> Callable[[], Key]:
    """Makes one more access key of the only user of a store that checks keys, and uses it."""
    administrator = as_user(ADMINISTRATOR)
    administrator.create_user(UserName="weir")
    rights = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*", "iam:*"], "Resource": "*"}]}
    administrator.put_user_policy(UserName="weir", PolicyName="tables", PolicyDocument=json.dumps(rights))
    keys = [ADMINISTRATOR]

    def make() -> Key:
        made = as_user(keys[-1]).create_access_key(UserName="weir")["AccessKey"]
        keys.append((made["AccessKeyId"], made["SecretAccessKey"]))
        use_key(keys[-1])
        return keys[-1]

    return make


def as_user(key: Key) -> Any:
    """IAM's client of the store, with a key that the environment does not have."""
    return boto3.Session(*key, region_name="us-east-1").client("iam")


def end_key(key: Key, by: Key) -> None:
    as_user(by).delete_access_key(UserName="weir", AccessKeyId=key[0])


@pytest.fixture
def joins(database: str, jars: Path, tmp_path: Path) -> Iterator[JoinsOnStore]:
    with joins_on_store(TABLES, database, jars, tmp_path) as started:
        yield started


@pytest.mark.long
def test_an_application_on_s3_gives_each_request_its_outcome_once_though_it_is_killed(
    store: str, joins: JoinsOnStore
) -> None:
    gives_each_outcome_once_though_killed(joins, Journal(store))


@pytest.mark.parametrize("store", [(SIGNED,)], indirect=True)
def test_a_writer_with_the_second_key_of_the_bucket_takes_over_and_the_first_key_ends(
    next_key: Callable[[], Key], use_key: Callable[[Key], None]
) -> None:
    """What docs/how-to/rotate-secrets.md says of the bucket's key; the store checks every signature."""
    first = next_key()
    before = DeltaWriter(TABLES, Table.ACCOUNTS, "joins", 1)
    before.commit(accounts(1), {LSN: 2})
    use_key((first[0], "guessed"))
    with pytest.raises(PermissionDeniedError):
        probe_put_if_absent(TABLES, "joins", 2)
    use_key(first)
    second = next_key()
    before.commit(accounts(2), {LSN: 3})
    probe_put_if_absent(TABLES, "joins", 2)
    after = DeltaWriter(TABLES, Table.ACCOUNTS, "joins", 2)
    end_key(first, second)
    with pytest.raises(PermissionDeniedError):
        before.commit(accounts(3), {LSN: 4})
    after.commit(accounts(4), {LSN: 4})
    stored = open_table(TABLES, Table.ACCOUNTS)
    assert stored is not None
    assert sorted(stored.to_pyarrow_table()["lsn"].to_pylist()) == [1, 2, 4]


@pytest.mark.long
@pytest.mark.parametrize("store", [(SIGNED,)], indirect=True)
def test_an_application_with_the_second_key_of_the_bucket_loses_and_doubles_nothing(
    store: str, next_key: Callable[[], Key], joins: JoinsOnStore
) -> None:
    first = next_key()
    journal = Journal(store)
    journal.commit([event(kind, "r0", 0) for kind in (EventType.REQUEST, EventType.COMPLETION)])
    before = joins.start()
    joins.wait_for({"r0": ["matched"]}, before)
    second = next_key()
    after = joins.start()
    before.send_signal(signal.SIGTERM)
    before.wait(timeout=60)
    end_key(first, second)
    Journal(store, epoch=2).commit([event(kind, "r1", 1) for kind in (EventType.REQUEST, EventType.COMPLETION)])
    joins.wait_for({"r0": ["matched"], "r1": ["matched"]}, after)
    after.send_signal(signal.SIGTERM)
    assert after.wait(timeout=60) == 0


def test_a_store_that_refuses_a_second_put_can_fence(store: str) -> None:
    probe_put_if_absent(store, "joins", 1)


@pytest.mark.parametrize("store", [("--forgetful",)], indirect=True)
def test_a_store_that_takes_the_same_file_twice_is_refused(store: str) -> None:
    with pytest.raises(Refused, match="cannot fence"):
        probe_put_if_absent(store, "joins", 1)


@pytest.mark.parametrize("store", [("--denying",)], indirect=True)
def test_a_commit_that_the_store_made_and_denied_is_not_made_twice(store: str) -> None:
    first = DeltaWriter(store, Table.ACCOUNTS, "joins", 1)
    first.commit(accounts(1), {LSN: 2})
    with pytest.raises(CommitFailedError):
        first.commit(accounts(2), {LSN: 3})
    second = DeltaWriter(store, Table.ACCOUNTS, "joins", 2)
    second.commit(accounts(second.next_lsn), {LSN: second.next_lsn + 1})
    table = open_table(store, Table.ACCOUNTS)
    assert table is not None
    assert sorted(table.to_pyarrow_table()["lsn"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("store", [("--denying",)], indirect=True)
def test_an_own_commit_that_the_store_made_and_denied_ends_the_driver_and_is_not_made_twice(store: str) -> None:
    first = DeltaWriter(store, Table.USAGE, "joins", 1)
    first.watch(POSITION)
    known = Upstream(store, Table.USAGE)
    while DeltaTable(first.path).version() < DENIED - 1:
        append(first, [NOW])
        known.refresh()
        assert known.next_lsn == first.next_lsn
    with pytest.raises(Fenced):
        append(first, [NOW])
    second = DeltaWriter(store, Table.USAGE, "joins", 2)
    second.watch(POSITION)
    append(second, [NOW, NOW])
    known.refresh()
    table = open_table(store, Table.USAGE)
    assert table is not None
    assert sorted(table.to_pyarrow_table()["lsn"].to_pylist()) == list(range(1, known.next_lsn))
    assert (known.next_lsn, table.transaction_version(POSITION)) == (second.next_lsn, second.next_lsn - 1)
    assert second.next_lsn == (first.known[LSN] or 1) + 3, "what was denied is there, once"


def test_accepted_identities_are_read_from_the_store(store: str) -> None:
    journal = Journal(store)
    for number in range(3):
        journal.commit([event(EventType.REQUEST, f"r{number}", number, identity=bytes([number] * 16))])
    identities = JournalIdentities(DeltaWriter(store, Table.JOURNAL, "ingestion", 2))
    assert [(span.first_lsn, span.last_lsn) for span in identities.spans()] == [(3, 3), (2, 2), (1, 1)]
    assert identities.read(2, 9)["lsn"].to_list() == [2, 3]

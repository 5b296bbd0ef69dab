"""Kafka with TLS and passwords, a real broker: ingestion and commands get in, others do not, secrets stay unsaid."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub leaves these out
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from deltalake import DeltaTable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.protocol.wire import Broker
from jobs.streams import Table
from laptop import broker
from laptop.broker import BrokerPorts
from laptop.class_archive import submit_arguments
from laptop.jars import broker_jars
from laptop.ports import LOOPBACK, free_ports
from tests.streaming.certificates import authority_and_server, client_certificate

PASSWORDS = {"PLAIN": "plain-secret", "SCRAM-SHA-512": 'open "sesame" \\'}
PRINCIPALS = ("setup", "producer", "ingestion", "billing", "connect", "api", "audit")
"""Of docs/kafka-acls.md; each is a user that may do what stands there, and nothing else. `weir` may do everything."""
WRITERS = {
    "events": {"producer", "api", "ingestion"},
    "catalog.prices": {"connect"},
    "corrections": {"billing"},
    "windows": {"billing"},
    "events.ordered": {"billing"},
    "heartbeats.weir": {"connect"},
    "weir-connect-configs": {"connect"},
    "of-others": set[str](),
}
PAGE = Path(__file__).parents[2] / "docs/kafka-acls.md"
SCRAM = ScramMechanism.SCRAM_SHA_512
LIMIT_SECONDS = 120
MUTUAL = "MUTUAL"
"""The listener where a client shows a certificate instead of a password."""
EVENT = (
    '{"specversion":"1.0","type":"ai.inference.request.v1","source":"g","id":"1","subject":"a",'
    '"time":"2026-01-01T00:00:00Z","data":{"request_id":"r","user_id":"u","model":"m","operation":"chat"}}\n'
)


def secured(authority: Path, bootstrap: str, mechanism: str) -> dict[str, str]:
    """The variables of a client that may come in."""
    return {
        "WEIR_KAFKA_BOOTSTRAP": bootstrap,
        "WEIR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "WEIR_KAFKA_SASL_MECHANISM": mechanism,
        "WEIR_KAFKA_USERNAME": "weir",
        "WEIR_KAFKA_PASSWORD": PASSWORDS[mechanism],
        "WEIR_KAFKA_CA_FILE": str(authority),
    }


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A broker that lets in who shows a password over TLS; gives the variables of such a client, by SCRAM."""
    folder = tmp_path_factory.mktemp("kafka")
    authority, server = authority_and_server(folder, LOOPBACK)
    clients, controller, mutual = free_ports(3)
    ports = BrokerPorts(clients, controller)
    broker.prepare(folder, broker_jars(), ports)
    user = f'username="weir" password="{PASSWORDS["PLAIN"]}" user_weir="{PASSWORDS["PLAIN"]}"'
    modules = "org.apache.kafka.common.security"
    settings = {
        "listeners": f"CLIENTS://{ports.bootstrap},{MUTUAL}://{LOOPBACK}:{mutual},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"CLIENTS://{ports.bootstrap},{MUTUAL}://{LOOPBACK}:{mutual}",
        "listener.security.protocol.map": f"CLIENTS:SASL_SSL,{MUTUAL}:SSL,CONTROLLER:PLAINTEXT",
        f"listener.name.{MUTUAL.lower()}.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required {user};",
        "listener.name.clients.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The second is the broker itself, at its quorum.
        "super.users": "User:weir;User:ANONYMOUS;User:CN=weir",
    }
    with (folder / "server.properties").open("a", encoding="utf-8") as properties:
        properties.writelines(f"{name}={value}\n" for name, value in settings.items())
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(broker.server_command(folder, broker_jars()), stdout=log, stderr=log)
    try:
        admin = AdminClient(KafkaAccess.read(secured(authority, ports.bootstrap, "PLAIN")).librdkafka())
        admin.list_topics(timeout=60)
        scram = ScramCredentialInfo(SCRAM, 4096)
        password = PASSWORDS["SCRAM-SHA-512"].encode()
        users: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(user, scram, password) for user in ("weir", *PRINCIPALS)
        ]
        for made in [*admin.alter_user_scram_credentials(users).values(), *admin.create_acls(documented()).values()]:
            made.result()
        yield secured(authority, ports.bootstrap, "SCRAM-SHA-512") | {MUTUAL: f"{LOOPBACK}:{mutual}"}
    finally:
        process.kill()
        process.wait()


def documented() -> list[AclBinding]:
    """What the page gives to PRINCIPALS."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0] in PRINCIPALS:
            principal, resource, name, operations = cells
            pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
            found += [
                AclBinding(
                    ResourceType[resource.upper().replace("-", "_")],
                    name.removesuffix("*"),
                    pattern,
                    f"User:{principal}",
                    "*",
                    AclOperation[re.sub("(?<=[a-z])(?=[A-Z])", "_", operation).upper()],
                    AclPermissionType.ALLOW,
                )
                for operation in operations.split(", ")
            ]
    assert {acl.principal for acl in found} == {f"User:{name}" for name in PRINCIPALS}
    return found


def binding(acl: AclBinding, user: str) -> AclBinding:
    """The same right, of another user."""
    return AclBinding(
        acl.restype,
        acl.name,
        acl.resource_pattern_type,
        f"User:{user}",
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def as_user(environment: dict[str, str], name: str) -> dict[str, str]:
    """The same, of another user."""
    return {**environment, "WEIR_KAFKA_USERNAME": name}


def weir(environment: dict[str, str], *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, input=text, env=variables, capture_output=True, text=True, check=False, timeout=90)


@pytest.mark.long
def test_ingestion_and_the_commands_get_in_with_the_documented_rights_and_no_log_holds_the_password(
    client: dict[str, str], database: str, jars: Path, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    environment = {**client, "WEIR_POSTGRES_URL": database, "WEIR_TABLES": str(tables), "WEIR_JARS": str(jars)}
    denied = weir(as_user(environment, "producer"), "topics", "--timeout", "3")
    assert denied.returncode == 1
    topics = weir(as_user(environment, "setup"), "topics")
    assert topics.returncode == 0, topics.stderr
    produced = weir(as_user(environment, "producer"), "produce", "-", text=EVENT)
    assert "1 acknowledged" in produced.stdout, produced.stderr

    log = tmp_path / "ingestion.log"
    with ingestion(as_user(environment, "ingestion"), log) as driver:
        wait_until(lambda: "r" in requests(tables), driver, log)
        # A heartbeat that is denied would be said here.
        assert "heartbeat" not in log.read_text()
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=60) == 0
    said = log.read_text() + topics.stdout + topics.stderr + produced.stderr
    assert "sesame" not in said


def test_only_those_whom_the_page_names_write_to_a_topic(client: dict[str, str]) -> None:
    """Producers write `events` and nothing else, and only the capture writes the catalog: by the page's own rights."""
    # First Weir's own: they have settings, which it asks for when other tests call it.
    assert weir(client, "topics").returncode == 0
    admin = AdminClient(KafkaAccess.read(client).librdkafka())
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in WRITERS]).values():
        with suppress(KafkaException):
            made.result()
    wrote: dict[str, set[str]] = {name: set() for name in WRITERS}
    refused: set[int] = set()
    for principal in PRINCIPALS:

        def delivered(problem: KafkaError | None, message: Message, principal: str = principal) -> None:
            if problem is None:
                wrote[str(message.topic())].add(principal)
            else:
                refused.add(problem.code())

        producer = Producer(KafkaAccess.read(as_user(client, principal)).librdkafka())
        for name in WRITERS:
            producer.produce(name, b"{}", key=b"some", on_delivery=delivered)
        assert producer.flush(LIMIT_SECONDS) == 0
    assert wrote == WRITERS
    assert refused == {KafkaError.TOPIC_AUTHORIZATION_FAILED}


@contextmanager
def ingestion(environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running ingestion, with checkpoints beside its log; killed at the end if it still runs."""
    variables = {**os.environ, **environment, "WEIR_CHECKPOINTS": f"{log}.checkpoints", **submit_arguments()}
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", "jobs", "ingestion"],
            env=variables,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def wait_until(holds: Callable[[], bool], driver: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert driver.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)


def requests(tables: Path) -> Counter[str]:
    """How often each request is in the journal."""
    if not DeltaTable.is_deltatable(f"{tables}/{Table.JOURNAL}"):
        return Counter()
    rows = DeltaTable(f"{tables}/{Table.JOURNAL}").to_pyarrow_table(columns=["request_id"])
    return Counter(request for request in rows["request_id"].to_pylist() if request is not None)


SECOND = {name: f"{name}-second" for name in ("producer", "ingestion")}
"""The users that follow the first ones."""


@pytest.fixture
def credentials(client: dict[str, str]) -> Iterator[Callable[[Iterable[str], Iterable[str]], None]]:
    """`credentials(to_add, to_remove)` gives users the password and takes it from others. All have it at the end."""
    admin = AdminClient(KafkaAccess.read(client).librdkafka())
    password = PASSWORDS["SCRAM-SHA-512"].encode()

    def change(to_add: Iterable[str], to_remove: Iterable[str]) -> None:
        changes: list[UserScramCredentialAlteration] = [
            *(UserScramCredentialUpsertion(user, ScramCredentialInfo(SCRAM, 4096), password) for user in to_add),
            *(UserScramCredentialDeletion(user, SCRAM) for user in to_remove),
        ]
        for made in admin.alter_user_scram_credentials(changes).values():
            made.result()

    rights = [binding(acl, SECOND[user]) for acl in documented() if (user := acl.principal[5:]) in SECOND]
    for made in admin.create_acls(rights).values():
        made.result()
    yield change
    change(SECOND, ())


@pytest.mark.long
def test_a_second_user_takes_over_under_traffic_and_nothing_is_lost_or_doubled(
    client: dict[str, str],
    credentials: Callable[[Iterable[str], Iterable[str]], None],
    database: str,
    jars: Path,
    tmp_path: Path,
) -> None:
    """What docs/how-to/rotate-secrets.md says of Kafka: ingestion and its producer change users, and the first end."""
    tables = tmp_path / "tables"
    environment = {**client, "WEIR_POSTGRES_URL": database, "WEIR_TABLES": str(tables), "WEIR_JARS": str(jars)}
    sent: list[str] = []

    def send(user: str, prefix: str) -> None:
        names = [f"{prefix}-{n}" for n in range(50)]
        events = [EVENT.replace('"id":"1"', f'"id":"{name}"').replace('"r"', f'"{name}"') for name in names]
        answer = weir(as_user(environment, user), "produce", "-", text="".join(events))
        assert f"{len(events)} acknowledged" in answer.stdout, answer.stderr
        sent.extend(names)

    first_log, second_log = tmp_path / "first.log", tmp_path / "second.log"
    send("producer", "before")
    with ingestion(as_user(environment, "ingestion"), first_log) as first:
        wait_until(lambda: set(sent) <= set(requests(tables)), first, first_log)
        credentials(SECOND.values(), ())
        send("producer", "by-the-first")
        with ingestion(as_user(environment, SECOND["ingestion"]), second_log) as second:
            send(SECOND["producer"], "by-the-second")
            first.send_signal(signal.SIGTERM)
            first.wait(timeout=60)
            credentials((), SECOND)
            assert weir(as_user(environment, "producer"), "topics", "--timeout", "3").returncode == 1
            send(SECOND["producer"], "after")
            wait_until(lambda: set(sent) <= set(requests(tables)), second, second_log)
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=60) == 0
    # Other tests of this broker have sent requests of their own.
    assert {name: number for name, number in requests(tables).items() if name in sent} == dict.fromkeys(sent, 1)


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize(
    "wrong",
    [
        {"WEIR_KAFKA_PASSWORD": "guessed"},
        {"WEIR_KAFKA_CA_FILE": ""},  # the system's authorities, which do not know this one
        {"WEIR_KAFKA_SASL_MECHANISM": "PLAIN"},  # the right user by the wrong password
    ],
)
def test_a_client_with_wrong_credentials_is_refused_with_the_reason(
    client: dict[str, str], wrong: dict[str, str]
) -> None:
    answer = weir({**client, **wrong}, "topics", "--timeout", "3")
    assert answer.returncode == 1
    assert "that the credentials are right" in answer.stderr
    assert "sesame" not in answer.stderr + answer.stdout


def test_half_a_credential_is_refused_before_anything_is_sent(client: dict[str, str]) -> None:
    answer = weir({**client, "WEIR_KAFKA_PASSWORD": ""}, "topics")
    assert answer.returncode == 1
    assert "SASL_SSL needs WEIR_KAFKA_USERNAME and WEIR_KAFKA_PASSWORD" in answer.stderr


def by_certificate(client: dict[str, str], file: Path | None) -> dict[str, str]:
    """The variables of a client that shows this file, and has no password."""
    place = {"WEIR_KAFKA_BOOTSTRAP": client[MUTUAL], "WEIR_KAFKA_CA_FILE": client["WEIR_KAFKA_CA_FILE"]}
    shown = {} if file is None else {"WEIR_KAFKA_CLIENT_FILE": str(file)}
    return {"WEIR_KAFKA_SECURITY_PROTOCOL": "SSL", **place, **shown}


def test_a_client_is_known_by_its_certificate_and_without_one_of_the_authority_gets_nowhere(
    client: dict[str, str], tmp_path: Path
) -> None:
    authority = Path(client["WEIR_KAFKA_CA_FILE"]).parent
    authority_and_server(tmp_path, LOOPBACK)
    known, stranger = client_certificate(authority, "weir"), client_certificate(tmp_path, "weir")
    unauthorized = client_certificate(authority, "somebody")
    assert weir(by_certificate(client, known), "topics").returncode == 0
    for refused in (None, stranger, unauthorized):
        answer = weir(by_certificate(client, refused), "topics", "--timeout", "3")
        assert answer.returncode == 1, (refused, answer.stdout)
    for file, gets_in in ((known, True), (None, False), (stranger, False)):
        access = KafkaAccess.read(by_certificate(client, file))
        with ExitStack() as held:
            if not gets_in:
                held.enter_context(pytest.raises(KafkaException))
            with Broker(access, LOOPBACK, int(client[MUTUAL].partition(":")[2])) as raw:
                assert raw.fetch("catalog.plans", 0, 0, 1_000).batches == b""


@pytest.fixture
def mutual_listener(client: dict[str, str]) -> Iterator[Callable[[str, Path | None], None]]:
    """`mutual_listener("truststore", file)` changes a store of MUTUAL under the running broker; undone at the end."""
    admin = AdminClient(KafkaAccess.read(client).librdkafka())
    broker_of_all = ConfigResource(ConfigResource.Type.BROKER, str(next(iter(admin.list_topics(timeout=60).brokers))))

    def change(store: str, file: Path | None) -> None:
        name = f"listener.name.{MUTUAL.lower()}.ssl.{store}.location"
        how = AlterConfigOpType.DELETE if file is None else AlterConfigOpType.SET
        broker_of_all.incremental_configs = [
            ConfigEntry(name, None if file is None else str(file), incremental_operation=how)
        ]
        for made in admin.incremental_alter_configs([broker_of_all]).values():
            made.result()

    yield change
    change("keystore", None)
    change("truststore", None)


@pytest.mark.long
def test_another_authority_and_certificates_take_over_under_traffic_and_nothing_is_lost_or_doubled(
    client: dict[str, str],
    mutual_listener: Callable[[str, Path | None], None],
    database: str,
    jars: Path,
    tmp_path: Path,
) -> None:
    """What docs/how-to/rotate-secrets.md says of certificates: both authorities, then the certificates, then one."""
    tables, other, both = tmp_path / "tables", tmp_path / "other", tmp_path / "both.crt"
    other.mkdir()
    old_authority = Path(client["WEIR_KAFKA_CA_FILE"])
    new_authority, new_server = authority_and_server(other, LOOPBACK)
    both.write_bytes(old_authority.read_bytes() + new_authority.read_bytes())
    old, new = client_certificate(old_authority.parent, "weir"), client_certificate(other, "weir")
    stores = {"WEIR_POSTGRES_URL": database, "WEIR_TABLES": str(tables), "WEIR_JARS": str(jars)}
    trusting_both = {"WEIR_KAFKA_CA_FILE": str(both), **stores}
    by_old, by_new = by_certificate(client, old) | trusting_both, by_certificate(client, new) | trusting_both
    sent: list[str] = []

    def send(environment: dict[str, str], prefix: str) -> None:
        names = [f"certificate-{prefix}-{n}" for n in range(50)]
        events = [EVENT.replace('"id":"1"', f'"id":"{name}"').replace('"r"', f'"{name}"') for name in names]
        answer = weir(environment, "produce", "-", text="".join(events))
        assert f"{len(events)} acknowledged" in answer.stdout, answer.stderr
        sent.extend(names)

    assert weir(by_old, "topics").returncode == 0
    first_log, second_log = tmp_path / "first.log", tmp_path / "second.log"
    with ingestion(by_old, first_log) as first:
        send(by_old, "before")
        wait_until(lambda: set(sent) <= set(requests(tables)), first, first_log)
        mutual_listener("truststore", both)
        with ingestion(by_new, second_log) as second:
            send(by_old, "by-the-old")
            first.send_signal(signal.SIGTERM)
            first.wait(timeout=60)
            mutual_listener("keystore", new_server)
            mutual_listener("truststore", new_authority)
            assert weir(by_old, "topics", "--timeout", "3").returncode == 1
            send(by_new | {"WEIR_KAFKA_CA_FILE": str(new_authority)}, "by-the-new")
            wait_until(lambda: set(sent) <= set(requests(tables)), second, second_log)
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=60) == 0
    assert {name: number for name, number in requests(tables).items() if name in sent} == dict.fromkeys(sent, 1)


@pytest.mark.long
def test_sparks_client_shows_the_same_certificate(client: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    authority_and_server(tmp_path, LOOPBACK)
    known, stranger = (client_certificate(at, "weir") for at in (Path(client["WEIR_KAFKA_CA_FILE"]).parent, tmp_path))
    assert weir(by_certificate(client, known), "topics").returncode == 0

    def records(file: Path) -> int:
        options = KafkaAccess.read(by_certificate(client, file)).spark()
        return spark.read.format("kafka").options(**options).option("subscribe", "catalog.plans").load().count()

    assert records(known) == 0
    with pytest.raises((PySparkException, Py4JError), match="SslAuthenticationException"):
        records(stranger)

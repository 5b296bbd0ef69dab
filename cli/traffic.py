"""`weir traffic`: generated traffic with known trouble, and the truth about it."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psycopg
import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from deployment.errors import CannotRun

if TYPE_CHECKING:
    from deployment.draining import Tell
    from deployment.stack import Deployment
    from traffic.placement import Policy
    from traffic.truth import Truth

DEFAULT_RATE = 1_500.0
PREPARING_SECONDS = 3.0
PREPARED_PER_SECOND = 6_000
"""How fast traffic is generated on a machine that is busy with a stack."""

EventsOption = Annotated[int, typer.Option("--events", min=1, help="How many records to send.")]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", help="A number from which the traffic is drawn; the same one draws the same traffic."),
]


def traffic(
    *,
    events: EventsOption = 10_000,
    rate: Annotated[float, typer.Option("--rate", min=1, help="Records a second.")] = DEFAULT_RATE,
    seed: SeedOption = None,
    truth: Annotated[
        Path | None, typer.Option("--truth", help="Write the expected result to this file, as JSON.")
    ] = None,
    incidents: Annotated[
        bool,
        typer.Option(
            "--incidents", help="Also plant retry storms, leaked keys and crossed limits, some late and some twice."
        ),
    ] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Apply a catalog of its own, send traffic with every kind of trouble, and write down the expected result.

    A run has its own accounts, so it can be repeated on one stack.
    """
    from cli.progress import telling
    from deployment.stack import running_deployment
    from traffic.truth import write

    with telling("Traffic …") as tell:
        written = run_traffic(
            running_deployment(data_dir), events=events, rate=rate, seed=seed, tell=tell, has_incidents=incidents
        )
    for trouble in written["left_out"]:
        typer.echo(f"Left out, because this stack's configuration leaves its bill uncertain: {trouble}", err=True)
    if truth is not None:
        write(written, truth)
    kinds = len(written["kinds"])
    typer.echo(
        f"{events} records of {kinds} kinds sent for {len(written['accounts'])} accounts (seed {written['seed']})."
    )


def run_traffic(
    stack: Deployment, *, events: int, rate: float, seed: int | None, tell: Tell, has_incidents: bool = False
) -> Truth:
    """Catalog, with the limits that incidents cross, traffic, truth.

    Raises CannotRun when a bill would be uncertain, or it could not be sent in time.
    """
    from cli.redrive.offline import ingestion_of
    from cli.traffic_catalog import change_late, tell_catalog, tell_limits, wait_until_journalled
    from cli.traffic_sending import send
    from deployment.kafka_client import kafka_client
    from traffic.generate import begin, catalog_of, generate
    from traffic.late_catalog import late_changes
    from traffic.placement import Placement, UnplaceableError
    from traffic.truth import truth_of

    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    placement = Placement(policy_of(stack))
    # Of any type.
    topic = ingestion_of(stack.postgres_url).topic_of(None)
    kafka = kafka_client(stack.kafka_bootstrap)
    catalog = catalog_of(seed, _now_ms(), placement.policy.priced, knows_attributes=placement.policy.knows_attributes)
    late = late_changes(catalog)
    tell_catalog(stack, late, tell)
    if has_incidents:
        tell_limits(stack, catalog)
    start_ms = _now_ms() + round(PREPARING_SECONDS * 1000)
    beginning = begin(seed=seed, start_ms=start_ms, records=events, placement=placement, catalog=catalog)
    journalled = send(beginning.records, placement.slack_ms, kafka, topic, tell)
    wait_until_journalled(stack, journalled, tell)
    change_late(stack, late, tell)
    start_ms = _now_ms() + round((PREPARING_SECONDS + events / PREPARED_PER_SECOND) * 1000)
    tell("drawing")
    try:
        run = generate(
            seed=seed,
            start_ms=start_ms,
            records=events,
            placement=placement,
            catalog=catalog,
            beginning=beginning,
            rate=rate,
            has_incidents=has_incidents,
        )
        found = truth_of(run)
    except UnplaceableError as problem:
        raise CannotRun(f"No traffic with a certain result can be made for this configuration: {problem}") from problem
    send(run.records[run.sent_before :], placement.slack_ms, kafka, topic, tell)
    return found


def policy_of(stack: Deployment) -> Policy:
    """What the running applications are configured to do, as they wrote it down when they started."""
    from deployment.asking import asking_database
    from traffic.placement import Policy

    with asking_database(stack.postgres_url), psycopg.connect(stack.postgres_url, connect_timeout=10) as database:
        jobs: dict[str, dict[str, Any]] = dict(database.execute("SELECT job, config FROM jobs").fetchall())
    return Policy.of(jobs)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251 -- the traffic is of now

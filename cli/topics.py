"""`weir topics`: create and check the topics that metering needs on your own Kafka; list and remove those of events."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Annotated

import typer

from cli.author import given_reason, who
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from deployment.errors import CannotRun

POLL_SECONDS = 1.0
topics = typer.Typer(invoke_without_command=True)


@topics.callback()
def _topics(
    context: typer.Context,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="A topic of events; repeat it for several. Default: `events` alone."),
    ] = None,
    ordered_events: Annotated[
        bool, typer.Option("--ordered-events", help="Make `events.ordered`, too, which billing is to write.")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for the brokers.")] = 60.0,
) -> None:
    """Create missing topics, and check the settings of existing ones.

    It connects to WEIR_KAFKA_BOOTSTRAP. Exit status 1 if a topic's settings would make bills wrong; settings that
    only put events at risk are printed. The commands below are about the topics of events.
    """
    if context.invoked_subcommand is not None:
        return
    from deployment.stack import KAFKA_VARIABLE
    from deployment.topics import answers, ensure_topics, topic_risks
    from jobs.streams import EVENTS_TOPIC

    bootstrap = os.environ.get(KAFKA_VARIABLE)
    if not bootstrap:
        raise CannotRun(
            f"{KAFKA_VARIABLE} is not set: set it to your brokers. For a stack on this machine `weir up` "
            "makes the topics."
        )
    deadline = time.monotonic() + timeout
    while not answers(bootstrap):
        if time.monotonic() > deadline:
            raise CannotRun(
                f"Kafka at {bootstrap} has not answered for {timeout:g} s: see that it runs, that {KAFKA_VARIABLE} "
                "names it, that it can be reached from here, and that the credentials are right."
            )
        time.sleep(POLL_SECONDS)
    events = topic or [EVENTS_TOPIC]
    ensure_topics(bootstrap, events, with_optional=ordered_events)
    for risk in topic_risks(bootstrap, events):
        typer.echo(risk, err=True)
    typer.echo(f"All topics are on {bootstrap}, with the settings that metering needs.")


@topics.command("list")
def list_(*, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List the topics of events: what is unread of each, up to when all was received, and how long Kafka keeps it.

    The frontier of the journal is the smallest of those that are read, so the topic with the smallest holds windows
    open. `positions` are the next offsets by partition. A topic that was removed is listed with what it has unread, and
    `since` when it is being removed.
    """
    from cli.topic_rows import COLUMNS, topic_rows
    from deployment.stack import running_deployment

    print_rows(topic_rows(running_deployment(data_dir)), COLUMNS, form)


@topics.command()
def remove(
    topic: Annotated[str, typer.Argument(help="The topic of events.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; stored with your name.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Remove it although records or completions of it will be missing.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until all of it is read.")] = 60.0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """End a topic of events: ingestion goes on without it once `events` in the configuration leaves it out.

    Run it while ingestion still reads the topic: a start without it is refused until it is removed. (If that was tried,
    start the old configuration again, remove the topic, and then start the new one.)

    Stop what writes to it first; what is written after ingestion has started without it is on no bill. (The API stops
    within seconds of the removal, and answers 503 to events that no other topic takes.) Refused while records of it are
    unread, or requests of it wait for a completion that would come through it; --accept-loss removes it all the same,
    and says how many. It looks again when the API has stopped, and withdraws the removal if it is refused then.
    If it is killed before, no start goes on without the topic: `weir topics list` shows the removal as unfinished, and
    running it again finishes it. The removal is for the next start: if that still lists the topic, it is read on.
    Listed again later, the topic is read from where it ended, as received when that is read.
    """
    from cli.topic_removal import Left, left_of, left_out, removing, wait_for_api
    from deployment.event_topics import event_topics
    from deployment.stack import running_deployment
    from jobs.ingestion.topic_removals import check_removal, store_removal, withdraw_removal

    why, stack = given_reason(reason, "this topic"), running_deployment(data_dir)
    read = event_topics(stack.postgres_url)
    # A database that was restored may have an older configuration than the journal.
    known = [*read, *left_out(stack.tables, read)]
    if topic not in known:
        raise CannotRun(f"Ingestion reads {', '.join(known)}: there is no topic {topic} to remove.")

    def looked(seconds: float) -> Left:
        left = left_of(stack, topic, seconds)
        if left.sentence and not accept_loss:
            raise CannotRun(f"{left.sentence} --accept-loss removes it all the same.")
        return left

    def withdraw(number: int) -> None:
        with removing(stack.postgres_url) as cursor:
            withdraw_removal(cursor, number)

    left = looked(timeout)
    with ExitStack() as unless_it_ends:
        with removing(stack.postgres_url) as cursor:
            number = store_removal(cursor, topic, why, who(), unread=left.unread, waiting=left.waiting)
        unless_it_ends.callback(withdraw, number)
        # What the API has acknowledged meanwhile would be on no bill if ingestion were stopped before it is read.
        wait_for_api()
        now = looked(0 if left.sentence else timeout)
        with removing(stack.postgres_url) as cursor:
            is_checked = check_removal(cursor, number, unread=now.unread, waiting=now.waiting)
        if not is_checked:
            raise CannotRun(
                f"The removal of {topic} was withdrawn meanwhile: ingestion was started with it, or it was removed a "
                "second time. If it is to end, run this again."
            )
        unless_it_ends.pop_all()
    if now.sentence:
        typer.echo(f"Accepted: {now.sentence}", err=True)
    typer.echo(f"{topic} ends when ingestion starts without it: leave it out of `events`, and start ingestion again.")

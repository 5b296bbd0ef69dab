"""How each kind of fault is done, and undone. Whoever is struck is asked for nothing: it is hit where it is."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

import psutil
from confluent_kafka import KafkaError, Message, Producer

from deployment.processes import ProcessId, session_members
from jobs.streams import EVENTS_TOPIC
from tests.faults.plan import STORE, Fault, Kind
from tests.faults.sending import MAX_AHEAD_SECONDS, producing
from tests.faults.stage import Stage

Undo = Callable[[], None]
BOMB_BYTES = 150 << 20
"""Compressed it is small enough for the broker, whose limit is of the compressed batch."""
LATE_SECONDS = 2.0
SECOND_DRIVER_LIVES_SECONDS = 120


class NobodyThere(Exception):
    """The target was between two lives: the fault did not happen."""


def _alive(stage: Stage, target: str) -> ProcessId:
    process = stage.process(target)
    if process is None or not process.is_running:
        raise NobodyThere(target)
    return process


def _java(stage: Stage, target: str) -> ProcessId:
    try:
        children = psutil.Process(_alive(stage, target).pid).children(recursive=True)
        found = [child.pid for child in children if child.name() == "java"]
    except psutil.Error:
        found = []
    java = ProcessId.of(found[0]) if found else None
    if java is None:
        raise NobodyThere(f"Java of {target}")
    return java


def _kill(stage: Stage, fault: Fault) -> None:
    _alive(stage, fault.target).signal(signal.SIGKILL)


def _kill_java(stage: Stage, fault: Fault) -> None:
    _java(stage, fault.target).signal(signal.SIGKILL)


def _frozen(processes: list[ProcessId]) -> Undo:
    for process in processes:
        process.signal(signal.SIGSTOP)

    def wake() -> None:
        for process in processes:
            process.signal(signal.SIGCONT)

    return wake


def frozen(stage: Stage, target: str) -> Undo:
    """Stop all processes of a target; calling what is given lets them go on. Raises NobodyThere."""
    return _frozen(session_members(_alive(stage, target), stage.stack_id))


def _freeze(stage: Stage, fault: Fault) -> Undo:
    return frozen(stage, fault.target)


def _freeze_java(stage: Stage, fault: Fault) -> Undo:
    return _frozen([_java(stage, fault.target)])


def _second_driver(stage: Stage, fault: Fault) -> None:
    """It ends by itself, once the supervisor's next driver has taken over from it; if not, by time."""
    supervised = _alive(stage, fault.target)
    try:
        pairs = [pair.partition(b"=") for pair in Path(f"/proc/{supervised.pid}/environ").read_bytes().split(b"\0")]
    except OSError:
        raise NobodyThere(fault.target) from None
    environment = {name.decode(): value.decode() for name, _, value in pairs if name}
    with stage.log(f"{fault.target}.second").open("ab") as log:
        second = subprocess.Popen(
            [sys.executable, "-m", "jobs", fault.target, "--config", str(stage.folders.config(fault.target))],
            env={**environment, "WEIR_METRICS_PORT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    identity = ProcessId.of(second.pid)
    end = partial(_end_session, second, identity, stage.stack_id)
    stage.running.callback(end)
    timer = threading.Timer(SECOND_DRIVER_LIVES_SECONDS, end)
    timer.daemon = True
    timer.start()


def _end_session(process: subprocess.Popen[bytes], leader: ProcessId | None, stack_id: str) -> None:
    for member in session_members(leader, stack_id) if leader is not None else []:
        member.signal(signal.SIGKILL)
    process.wait()


def _zombie(stage: Stage, fault: Fault) -> Undo:
    wake = _freeze(stage, fault)
    _second_driver(stage, fault)
    return wake


def _lose_checkpoint(stage: Stage, fault: Fault) -> None:
    driver = _alive(stage, fault.target)
    shutil.rmtree(stage.folders.checkpoints / fault.target, ignore_errors=True)
    driver.signal(signal.SIGKILL)


def _backlog(stage: Stage, fault: Fault) -> Undo:
    members = session_members(_alive(stage, fault.target), stage.stack_id)
    _frozen(members)

    def kill() -> None:
        for member in members:
            member.signal(signal.SIGKILL)

    return kill


def _cut(stage: Stage, fault: Fault) -> Undo:
    return stage.servers.proxies[fault.target].cut()


def _delay(stage: Stage, fault: Fault) -> Undo:
    # A commit to a store takes more than one request.
    return stage.servers.proxies[fault.target].delay(LATE_SECONDS if fault.target != STORE else LATE_SECONDS / 4)


def _blackhole(stage: Stage, fault: Fault) -> Undo:
    return stage.servers.proxies[fault.target].hold()


def _answer_lost(stage: Stage, fault: Fault) -> Undo:
    return stage.servers.proxies[fault.target].lose_answers()


def _poison(stage: Stage, fault: Fault) -> None:
    packed = {"compression.type": "gzip", "message.max.bytes": 2 * BOMB_BYTES}
    producer = Producer({**producing(stage), **packed, "queue.buffering.max.kbytes": 2 * BOMB_BYTES // 1024})

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is None:
            stage.poisoned.append(fault)

    document = {"specversion": "1.0", "type": "poison", "source": "poison", "id": uuid4().hex, "subject": "poison"}
    value = json.dumps({**document, "padding": " " * BOMB_BYTES}).encode()
    producer.produce(EVENTS_TOPIC, value, b"poison", on_delivery=delivered)
    sent = threading.Thread(target=producer.flush, name="poison", daemon=True)
    sent.start()
    stage.running.callback(sent.join, 60)


def _clock_ahead(stage: Stage, fault: Fault) -> Undo:
    # The longer it lasts the further ahead: below the limit it is believed, above it is waited for.
    ahead_seconds = 10 + round((MAX_AHEAD_SECONDS - 10) * fault.lasts_seconds / 20)
    stage.servers.set_clock_ahead(ahead_seconds)
    return partial(stage.servers.set_clock_ahead, 0)


STRIKES: dict[Kind, Callable[[Stage, Fault], Undo | None]] = {
    Kind.KILL: _kill,
    Kind.KILL_JAVA: _kill_java,
    Kind.FREEZE: _freeze,
    Kind.FREEZE_JAVA: _freeze_java,
    Kind.SECOND_DRIVER: _second_driver,
    Kind.ZOMBIE: _zombie,
    Kind.LOSE_CHECKPOINT: _lose_checkpoint,
    Kind.BACKLOG: _backlog,
    Kind.CUT: _cut,
    Kind.DELAY: _delay,
    Kind.BLACKHOLE: _blackhole,
    Kind.ANSWER_LOST: _answer_lost,
    Kind.POISON: _poison,
    Kind.CLOCK_AHEAD: _clock_ahead,
}

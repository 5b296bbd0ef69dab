"""One run: traffic begins, faults strike as planned, the traffic ends, everything drains, and the truth is asked."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from cli.compare import settle
from deployment.draining import Stuck
from tests.faults import alerts, result
from tests.faults.plan import KINDS, STORE, Fault, Kind, draw
from tests.faults.posting import Posting
from tests.faults.result import Result
from tests.faults.sending import Sending
from tests.faults.servers import CLOCK_LIBRARIES, HOW_TO_GET_CLOCK
from tests.faults.stage import DriverRows, Stage, driver_rows_of, staged
from tests.faults.strikes import STRIKES, NobodyThere, Undo
from tests.faults.verdict import Verdict, broken_invariants, plant_and_look, poison_found, verdict, with_posted
from tests.faults.watching import Progress, commits, fired, positions
from traffic.compare import Comparison
from traffic.truth import Truth

AFTER_SECONDS = 30.0
"""The traffic goes on for so long after the last fault."""
STANDS_STILL_SECONDS = 600.0
"""Slow is not wrong. A stack whose applications all stand still for so long does not go on by itself."""
TOLD_EVERY_SECONDS = 15.0
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to do: a seed, how many faults, how many records a second; which batches are large (None: by the seed)."""

    seed: int
    faults: int
    rate: float
    with_store: bool
    driver_rows: int | None = None

    @property
    def sizes(self) -> DriverRows:
        """Up to how many rows of a batch are the driver's, by application."""
        return driver_rows_of(self.seed, self.driver_rows)

    @property
    def left_out(self) -> frozenset[tuple[Kind, str]]:
        """What cannot be struck here."""
        of_store = {(kind, STORE) for kind, drawn in KINDS.items() if STORE in drawn.targets}
        clock = {(Kind.CLOCK_AHEAD, "kafka")}
        return frozenset((set() if self.with_store else of_store) | (set() if CLOCK_LIBRARIES else clock))


def run(plan: Plan, folder: Path, tell: Tell) -> Result:
    """Run it in an empty folder."""
    if not CLOCK_LIBRARIES:
        tell(f"Left out: {HOW_TO_GET_CLOCK}.")
    faults = draw(plan.seed, plan.faults, plan.left_out)
    seconds = faults[-1].at_seconds + AFTER_SECONDS
    tell(f"seed {plan.seed}: {len(faults)} faults in {seconds / 60:.0f} minutes; starting the stack …")
    with staged(folder, with_store=plan.with_store, driver_rows=plan.sizes) as stage:
        sending = Sending(stage, seed=plan.seed, seconds=seconds, rate=plan.rate, folder=folder)
        posting = Posting(stage, seed=plan.seed, folder=folder)
        began_at = datetime.now(UTC)
        posting.start()
        attack = Attack(stage, sending, tell)
        struck, missed = attack.run(faults)
        stall = attack.progress.stop()
        sending.finish()
        posting.finish()
        committed = commits(stage.deployment)
        tell(f"{sending.acknowledged} records sent, the last fault is over: draining …")
        poison = len(stage.poisoned)
        posted = 0
        try:
            live = _settled(stage, sending.truth, tell)
            broken = broken_invariants(stage)
            # One of these is an audit.
            standing = _settled(stage, sending.truth, tell, audited=True)
            comparison = Comparison(tuple(dict.fromkeys((*live.checks, *standing.checks))))
            found_posted = posting.found(stage.deployment)
            posted = found_posted.events
            found = with_posted(verdict(comparison, broken, poison, poison_found(stage.deployment)), found_posted)
        except Stuck as stuck:
            found = Verdict(0, 0, 1, (f"it does not drain: {stuck}",))
        names = fired(stage.stack().prometheus_url, began_at, datetime.now(UTC))
        compared = None if names is None else alerts.compare(names, {(fault.kind, fault.target) for fault in struck})
        return result.result_of(
            began_at=began_at,
            seed=plan.seed,
            tables="object store" if plan.with_store else "folder",
            driver_rows=plan.sizes,
            struck=struck,
            missed=missed,
            left_out=sorted(f"{kind}: {target}" for kind, target in plan.left_out),
            answers_lost={name: proxy.swallowed for name, proxy in stage.servers.proxies.items()},
            records=sending.acknowledged + poison + posted,
            poison=poison,
            posted=posted,
            verdict=found,
            stall=stall,
            commits=committed,
            alerts=compared,
            planted={} if found.failures else plant_and_look(sending.truth, stage),
        )


class Attack:
    """Strikes while the traffic is sent."""

    def __init__(self, stage: Stage, sending: Sending, tell: Tell) -> None:
        self._stage, self._sending, self._tell = stage, sending, tell
        self.progress = Progress(stage.deployment.postgres_url)
        self._undos: list[tuple[float, int, Fault, Undo]] = []
        self._numbers = count()
        self._began = 0.0

    def run(self, faults: list[Fault]) -> tuple[list[Fault], list[Fault]]:
        """Strike all, each at its instant; gives those that happened, and those that found nobody."""
        self._began = self._sending.start()
        self.progress.start()
        struck: list[Fault] = []
        missed: list[Fault] = []
        try:
            for number, fault in enumerate(faults, start=1):
                self._undo_until(self._began + fault.at_seconds)
                try:
                    undo = STRIKES[fault.kind](self._stage, fault)
                except NobodyThere as nobody:
                    missed.append(fault)
                    self._say(f"{number} {fault}, but nobody is there: {nobody}")
                    continue
                struck.append(fault)
                self._say(f"{number} {fault}")
                if undo is not None:
                    over_at = time.monotonic() + fault.lasts_seconds
                    heapq.heappush(self._undos, (over_at, next(self._numbers), fault, undo))
            self._undo_until(max((over_at for over_at, *_ in self._undos), default=0.0))
            while not self._sending.is_over:
                time.sleep(1)
        finally:
            for *_, undo in self._undos:
                undo()
        return struck, missed

    def _undo_until(self, instant: float) -> None:
        """Wait until an instant, and end the faults that are over before it."""
        while self._undos and self._undos[0][0] <= instant:
            over_at, *_, undo = heapq.heappop(self._undos)
            _sleep_until(over_at)
            undo()
        _sleep_until(instant)

    def _say(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        stalled = self.progress.stalled_seconds
        self._tell(
            f"{seconds:6.0f} s  {self._sending.acknowledged:6d} sent  usage {self.progress.position:6d}"
            f"  last moved {stalled:3.0f} s ago  {text}"
        )


def _settled(stage: Stage, truth: Truth, tell: Tell, *, audited: bool = False) -> Comparison:
    """The comparison, when all is decided and billed. Raises `Stuck` when nothing moves any more before that."""
    before: list[int] = []
    while True:
        try:
            return settle(stage.deployment, truth, STANDS_STILL_SECONDS, _seldom(tell), audited=audited)
        except Stuck as stuck:
            if (now := positions(stage.deployment)) == before:
                raise
            tell(f"slow, but it moves: {stuck}")
            before = now


def _sleep_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.monotonic()))


def _seldom(tell: Tell) -> Tell:
    told_at = [float("-inf")]

    def seldom(text: str) -> None:
        if time.monotonic() - told_at[0] > TOLD_EVERY_SECONDS:
            told_at[0] = time.monotonic()
            tell(text)

    return seldom

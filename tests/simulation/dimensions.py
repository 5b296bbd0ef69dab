"""Accounts with tags and parents, and a joins that is told to keep usage by them, now by these and now by others."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobs.streams import CatalogTopic
from metering.instants import rfc3339
from tests.simulation.calls import Fault
from tests.simulation.steps import Configure, Publish, Run, Step
from tests.simulation.world import World

NAMED = ("account.plan", "account.tags.team", "account.parent", "user_id")
OTHERS = (NAMED, (), NAMED[:2], (*NAMED[1:], "account.tags.other"))


@dataclass(frozen=True)
class Tell:
    """Somebody changes an account, with its tags and its parent; `from_s`: from so long after now on."""

    account: int
    plan: int
    tags: Mapping[str, str]
    from_s: float | None = None
    parent: str | None = None
    currency: str = "EUR"
    deleted: bool = False

    def do(self, world: World) -> str:
        """Append it to its topic."""
        key: dict[str, Any] = {"account": f"a{self.account}"}
        said: dict[str, Any] = {"plan": f"p{self.plan}", "currency": self.currency, "timezone": "UTC"}
        said |= {"tags": dict(self.tags), "parent": self.parent}
        if self.from_s is not None:
            said["effective_from"] = rfc3339(world.clock.now() + timedelta(seconds=self.from_s))
        world.publish(CatalogTopic.ACCOUNTS, key if self.deleted else key | said, deleted=self.deleted)
        return ""


def with_dimensions(chance: random.Random, steps: list[Step]) -> list[Step]:
    """The same history, where usage is kept by what its account was, and more is told of accounts."""
    made: list[Step] = [Configure("joins", "dimensions", NAMED)]
    for step in steps:
        made.append(_tagged(chance, step) if isinstance(step, Publish) and step.what == "account" else step)
        if chance.random() < 0.15:
            from_s = chance.choice([None, 0, 60, -60, -4_000])
            made.append(Tell(chance.randrange(2), chance.randrange(2), _tags(chance), from_s))
        if chance.random() < 0.1:
            made += [Configure("joins", "dimensions", chance.choice(OTHERS)), Run("joins", 0, Fault.CRASH)]
    return made


def _tagged(chance: random.Random, step: Publish) -> Tell:
    parent = chance.choice([None, "a2"])
    return Tell(step.amount % 2, step.plan, _tags(chance), step.from_s, parent, step.currency, step.deleted)


def _tags(chance: random.Random) -> dict[str, str]:
    return {name: chance.choice(["red", "blue", ""]) for name in ("team", "other") if chance.random() < 0.7}

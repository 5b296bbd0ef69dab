"""Conditions of stored queries in three mixes: of five shapes, of no shape twice, and of any form."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from metering.contracts.model import Kind

COLUMNS: Mapping[str, Kind] = {
    **dict.fromkeys(("account", "model", "region", "status", "user_id"), Kind.TEXT),
    **dict.fromkeys(("input_tokens", "output_tokens"), Kind.INTEGER),
    "latency_ms": Kind.DOUBLE,
    "cached": Kind.BOOLEAN,
}


def mixed(chance: random.Random, number: int) -> str:
    """Conditions of five shapes; every tenth compares nothing with `=`, so each outcome is tested."""
    model, account = f"m-{chance.randrange(50)}", f"a-{chance.randrange(1_000)}"
    tokens, slow_ms = chance.randint(50_000, 200_000), chance.randint(100_000, 200_000)
    match number % 10:
        case 0 | 1 | 2 | 3 | 4:
            team = f"t{chance.randrange(100)}"
            return f'model = "{model}" and output_tokens > {tokens} and account.tags.team = "{team}"'
        case 5 | 6:
            return f'account = "{account}" and status in ("error", "cancelled")'
        case 7:
            return f'account = "{account}" and latency_ms > {slow_ms}'
        case 8:
            return f'model in ("{model}", "m-x") and not (cached or region = "eu") and input_tokens >= {tokens}'
        case _:
            return f"latency_ms > {slow_ms} and output_tokens > {chance.randint(1, 100)}"


def unlike(chance: random.Random, number: int) -> str:
    """Conditions no two of which have one shape: nothing is shared but the value by which rows are found."""
    tests = [f"output_tokens > {chance.randint(50_000, 200_000)}", f"latency_ms > {chance.randint(50_000, 200_000)}"]
    lists = " and ".join(
        f'region not in ("r-{number}-{place}", "r-{chance.randrange(9)}")' for place in range(chance.randint(1, 3))
    )
    return f'model = "m-{chance.randrange(50)}" and {chance.choice(tests)} and {lists}'


def of_any_form(chance: random.Random, number: int) -> str:
    """One test that few outcomes meet, and up to three of any column, some of them alternatives."""
    rare = (
        f'account = "a-{chance.randrange(1_000)}"',
        f'user_id in ("u-{chance.randrange(10_000)}", "u-{number}")',
        f"latency_ms > {chance.randint(20_000, 200_000)}",
        f"output_tokens >= {chance.randint(6_000, 100_000)}",
        f'model = "m-{chance.randrange(50)}" and status = "error"',
        f'account.tags.team = "t{chance.randrange(100)}" and not latency_ms < {chance.randint(5_000, 50_000)}',
    )
    tests = [_any_test(chance) for _ in range(chance.randint(0, 3))]
    if len(tests) > 1 and chance.random() < 0.5:
        tests = [f"({' or '.join(tests)})"]
    return " and ".join([chance.choice(rare), *tests])


def _any_test(chance: random.Random) -> str:
    column, kind = chance.choice(list(COLUMNS.items()))
    if kind is Kind.TEXT:
        value = f'"{column[0]}-{chance.randrange(9)}"'
        ways = (
            f"!= {value}",
            f'in ({value}, {value[:-1]}0")',
            f"starts with {value}",
            "is not null",
            f"not in ({value})",
        )
        return f"{column} {chance.choice(ways)}"
    if kind is Kind.BOOLEAN:
        return chance.choice((column, f"not {column}", f"{column} is null"))
    return f"{column} {chance.choice(('<', '<=', '>', '>=', '!='))} {chance.randint(1, 9_000)}"


MIXES: Mapping[str, Callable[[random.Random, int], str]] = {
    "five shapes": mixed,
    "no two alike": unlike,
    "of any form": of_any_form,
}

"""What a contract took is taken on: `narrowed` finds each way to take less, and says nothing of taking more.

oracle: where it says nothing, the validator itself takes and reads under the new contract what it took under the old
one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.ingestion.validator import LOG_APPEND_TIME, EventValidator
from jobs.runtime.kafka.marks import MARKS
from jobs.streams import INSTANT
from metering.contracts.compatibility import narrowed, withdrawn
from metering.contracts.model import Contract, Field, Kind
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped
from metering.vocabulary import Family, Reason
from tests.contracts.__main__ import main
from tests.contracts.kept import keep, refusals, unkept

NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE)
TEXTS = ["a", "b", "cc", "dd"]
"""No longer than any field's bytes: a document with a longer one is refused."""
Change = Callable[[Field], Field | None]


@st.composite
def fields(draw: st.DrawFn, name: str) -> Field:
    kind = draw(st.sampled_from(Kind))
    path = ("data", name) if draw(st.booleans()) else ("data", "within", name)
    least, most = sorted(draw(st.tuples(st.integers(-9, 9), st.integers(-9, 9))))
    has = draw(st.tuples(st.booleans(), st.booleans()))
    listed = st.lists(st.sampled_from(TEXTS), min_size=2, unique=True).map(tuple)
    values = draw(st.none() | listed)
    return Field(
        path,
        kind,
        column=f"of_{name}",
        is_required=draw(st.booleans()),
        values=values if kind is Kind.TEXT else None,
        max_bytes=draw(st.integers(2, 6)) if kind is Kind.TEXT else None,
        minimum=Decimal(least) if kind in NUMBERS and has[0] else None,
        maximum=Decimal(most) if kind in NUMBERS and has[1] else None,
        takes_text=kind in NUMBERS and draw(st.booleans()),
    )


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    named = [draw(fields(name)) for name in "pqrs"[: draw(st.integers(1, 4))]]
    return Contract("t.v1", draw(st.sampled_from([Family.REQUEST, Family.COMPLETION])), tuple(named))


def less(old: Field, **more: Any) -> Field:
    return replace(old, **more)


NARROWINGS: dict[str, tuple[Callable[[Field], bool], Change]] = {
    "required": (lambda f: not f.is_required, lambda f: less(f, is_required=True)),
    "a value fewer": (lambda f: f.values is not None, lambda f: less(f, values=(f.values or ())[1:])),
    "values at all": (lambda f: f.kind is Kind.TEXT and f.values is None, lambda f: less(f, values=("a",))),
    "fewer bytes": (
        lambda f: f.kind is Kind.TEXT and f.values is None,
        lambda f: less(f, max_bytes=(f.max_bytes or 0) - 1),
    ),
    "a higher minimum": (
        lambda f: f.kind in NUMBERS,
        lambda f: less(f, minimum=Decimal(-99) if f.minimum is None else f.minimum + Decimal("0.000001")),
    ),
    "a lower maximum": (
        lambda f: f.kind in NUMBERS,
        lambda f: less(f, maximum=Decimal(99) if f.maximum is None else f.maximum - Decimal("0.000001")),
    ),
    "another kind": (
        lambda f: f.kind in NUMBERS,
        lambda f: less(f, kind={Kind.INTEGER: Kind.DECIMAL, Kind.DECIMAL: Kind.DOUBLE}.get(f.kind, Kind.INTEGER)),
    ),
    "no texts of numbers": (lambda f: f.takes_text, lambda f: less(f, takes_text=False)),
    "another column": (lambda _: True, lambda f: less(f, column="another")),
    "another place": (lambda _: True, lambda f: less(f, path=(*f.path, "below"))),
    "gone": (lambda _: True, lambda _: None),
}
WIDENINGS: dict[str, tuple[Callable[[Field], bool], Change]] = {
    "may be left out": (lambda _: True, lambda f: less(f, is_required=False)),
    "a value more": (lambda f: f.values is not None, lambda f: less(f, values=("new", *(f.values or ())))),
    "any value": (lambda f: f.values is not None, lambda f: less(f, values=None, max_bytes=6)),
    "more bytes": (lambda f: f.kind is Kind.TEXT, lambda f: less(f, max_bytes=(f.max_bytes or 0) + 1)),
    "a lower minimum": (lambda f: f.minimum is not None, lambda f: less(f, minimum=(f.minimum or 0) - 1)),
    "no minimum": (lambda f: f.minimum is not None, lambda f: less(f, minimum=None)),
    "a higher maximum": (lambda f: f.maximum is not None, lambda f: less(f, maximum=(f.maximum or 0) + 1)),
    "texts of numbers": (lambda f: f.kind in NUMBERS, lambda f: less(f, takes_text=True)),
    "another reason": (lambda _: True, lambda f: less(f, reason=Reason.INVALID_TOKENS)),
    "as it was": (lambda _: True, lambda f: f),
}


def changed(draw: st.DrawFn, old: Field, among: dict[str, tuple[Callable[[Field], bool], Change]]) -> Field | None:
    fitting = [change for applies, change in among.values() if applies(old)]
    return draw(st.sampled_from(fitting))(old)


@st.composite
def widened(draw: st.DrawFn) -> tuple[Contract, Contract]:
    old = draw(contracts())
    kept = [field for each in old.fields if (field := changed(draw, each, WIDENINGS)) is not None]
    further = draw(fields("new").map(lambda field: replace(field, is_required=False)))
    return old, replace(old, fields=tuple(draw(st.permutations([*kept, further]))), description="another")


@st.composite
def tightened(draw: st.DrawFn) -> tuple[Contract, Contract]:
    old, new = draw(widened())
    fitting = [(field, change) for field in old.fields for applies, change in NARROWINGS.values() if applies(field)]
    victim, change = draw(st.sampled_from(fitting))
    others = [field for field in new.fields if field.column != victim.column]
    made = change(victim)
    return old, replace(new, fields=tuple([*others, made] if made is not None else others))


@given(widened())
def test_a_contract_that_only_takes_more_is_compatible(pair: tuple[Contract, Contract]) -> None:
    assert narrowed(*pair) == []


@given(tightened())
def test_a_narrowed_field_is_found(pair: tuple[Contract, Contract]) -> None:
    assert narrowed(*pair) != []


@pytest.mark.parametrize("name", NARROWINGS)
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_each_narrowing_is_reported_once_with_its_path(name: str, data: st.DataObject) -> None:
    applies, change = NARROWINGS[name]
    field = data.draw(fields("p").filter(applies))
    old = Contract("t.v1", Family.REQUEST, (field,))
    made = change(field)
    found = narrowed(old, replace(old, fields=() if made is None else (made,)))
    assert 1 <= len(found) <= 2, "it is gone, and something new is required"
    assert all(sentence.startswith(field.pointer) for sentence in found)


def test_a_field_that_is_new_and_required_is_found() -> None:
    old = Contract("t.v1", Family.REQUEST, (Field(("data", "p"), Kind.TEXT, "p"),))
    further = Field(("data", "q"), Kind.TEXT, "q", is_required=True)
    assert narrowed(old, replace(old, fields=(*old.fields, further))) == ["/data/q: it is new, and required"]


def test_another_family_is_found() -> None:
    old = Contract("t.v1", Family.REQUEST, (Field(("data", "p"), Kind.TEXT, "p"),))
    assert narrowed(old, replace(old, family=Family.BOTH)) == ["its family is both, and was request"]


def test_a_contract_of_another_type_is_found() -> None:
    old = Contract("t.v1", Family.REQUEST, ())
    assert narrowed(old, replace(old, type="t.v2")) == ["it is of t.v2, and was of t.v1"]


def test_an_enum_may_widen_to_texts_of_its_length() -> None:
    field = Field(("data", "p"), Kind.TEXT, "p", values=("long", "a"), max_bytes=2)
    old = Contract("t.v1", Family.REQUEST, (field,))
    for most, is_enough in ((3, False), (4, True)):
        new = replace(old, fields=(replace(field, values=None, max_bytes=most),))
        assert (narrowed(old, new) == []) is is_enough


POOL: dict[Kind, list[Any]] = {
    Kind.TEXT: [None, "", "a", "b", "cc", "ddd", "dddd", "é" * 3, 1],
    Kind.INTEGER: [None, -10, -9, -1, 0, 1, 9, 10, "1", "1e0", 0.5],
    Kind.DECIMAL: [None, -10, -9.000001, -1, 0, 0.5, 9, 10, "1", "0.50", 1e-7],
    Kind.DOUBLE: [None, -10, -9, 0, 1e-9, 9, 10, "1", "x"],
    Kind.BOOLEAN: [None, True, False, 0, "true"],
}


def event_of(contract: Contract, random: Random) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for field in contract.fields:
        inner = data if len(field.path) == 2 else data.setdefault("within", {})
        if random.random() < 0.8:
            inner[field.path[-1]] = random.choice(POOL[field.kind])
    return {"specversion": "1.0", "type": contract.type, "source": "s", "id": "1", "subject": "a", "data": data} | {
        "time": "2026-01-01T00:00:00Z"
    }


def validated(contract: Contract, values: list[bytes]) -> pl.DataFrame:
    count = len(values)
    records = pa.table(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["events"] * count, pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * count, INSTANT),
            "timestampType": pa.array([LOG_APPEND_TIME] * count, pa.int32()),
            **{column: pa.nulls(count, pa.binary()) for column in MARKS},
        }
    )
    return pl.DataFrame(EventValidator({contract.type: contract}).validate(records))


@settings(max_examples=40, deadline=None)
@given(pair=widened(), seed=st.integers(0, 2**32))
def test_oracle_compatible_contracts_accept_and_read_earlier_events_alike(
    pair: tuple[Contract, Contract], seed: int
) -> None:
    old, new = pair
    random = Random(seed)
    values = [json.dumps(event_of(old, random)).encode() for _ in range(60)]
    assert narrowed(old, new) == []
    was, now = validated(old, values), validated(new, values)
    is_taken = was["reason"].is_null()
    assert now.filter(is_taken)["reason"].null_count() == is_taken.sum()
    columns = [field.column for field in old.fields]
    assert now.filter(is_taken).select(columns).equals(was.filter(is_taken).select(columns))


def test_the_shipped_contracts_accept_stored_examples() -> None:
    assert refusals() == []
    assert unkept() == [], "run: python -m tests.contracts"
    assert main(["--check"]) == 0


def test_a_narrowed_contract_is_incompatible_and_a_widened_one_compatible(tmp_path: Path) -> None:
    keep(tmp_path)
    name = "litellm_tokens"
    today = json.loads(json.dumps(dict(shipped())))
    members = today[name]["properties"]["data"]["properties"]
    members["user"] = {"type": "string", "x-weir-column": "user_id"}
    assert (refusals(tmp_path, today), unkept(tmp_path, today)) == ([], [name])
    keep(tmp_path, today)
    assert unkept(tmp_path, today) == []
    del members["user"]
    gone = "litellm_tokens /data/user: it is gone, so nothing fills the column user_id any more"
    assert refusals(tmp_path, today) == [gone]
    del today[name]
    assert refusals(tmp_path, today) == ["litellm_tokens it is gone: its events would be on no bill"]


def test_the_command_keeps_nothing_that_is_narrowed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("tests.contracts.__main__.refusals", lambda: ["x.v1 /data/a: it is required, and was not"])
    monkeypatch.setattr("tests.contracts.__main__.keep", lambda: pytest.fail("it was kept"))
    assert main([]) == 1
    assert "x.v1 /data/a: it is required" in capsys.readouterr().err


def test_types_without_a_contract_any_more_are_withdrawn() -> None:
    found = contracts_of([], shipped())
    assert withdrawn(found, found) == {}
    assert set(withdrawn(found, {})) == set(found)

"""The conditions of `define`, and the declaration around them: what is taken, and the sentence for each mistake."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.analytics.config import AnalyticsConfig
from jobs.stack import load_stack_config
from metering.patterns.burst import Burst
from metering.patterns.expressions import (
    Both,
    Column,
    Comparison,
    Condition,
    Either,
    Gap,
    In,
    IsNull,
    Literal,
    Not,
    Type,
    condition_of,
    looks_back,
)
from metering.patterns.measures import measure_of

BURST: dict[str, Any] = {
    "of": "outcomes",
    "partition_by": ["account", "api_key_id"],
    "burst": {"times": 10, "at_least": 20},
}
STORM: dict[str, Any] = {
    "of": "outcomes",
    "partition_by": ["account", "api_key_id"],
    "pattern": "A B{9,}",
    "define": {"A": 'status = "error"', "B": 'status = "error" and gap <= PT30S'},
    "within": "PT10M",
    "measures": {"failures": "count(*)", "tokens": "sum(B.output_tokens)", "first_model": "first(A.model)"},
}


def texts() -> st.SearchStrategy[Literal]:
    of = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
    return of.map(lambda text: Literal(Type.TEXT, text))


def numbers() -> st.SearchStrategy[Literal]:
    return st.decimals(-(10**9), 10**9, places=3).map(lambda number: Literal(Type.NUMBER, number))


COLUMNS = st.builds(Column, st.sampled_from(["model", "output_tokens", "isolated", "null_part"]), st.booleans())
TESTS: st.SearchStrategy[Condition] = st.one_of(
    st.builds(lambda left, right: Comparison("=", left, right, right.type), COLUMNS, texts() | numbers()),
    st.builds(lambda left, right: Comparison("<=", left, right, Type.NUMBER), COLUMNS, COLUMNS | numbers()),
    st.builds(lambda left, right: Comparison("!=", left, right, None), COLUMNS, COLUMNS),
    st.just(Comparison(">", Gap(), Literal(Type.DURATION, 90), Type.DURATION)),
    st.builds(lambda column, values: In(column, tuple(values)), COLUMNS, st.lists(texts(), min_size=1, max_size=3)),
    st.builds(IsNull, COLUMNS),
)
CONDITIONS = st.recursive(
    TESTS,
    lambda parts: st.one_of(st.builds(Not, parts), st.builds(Both, parts, parts), st.builds(Either, parts, parts)),
    max_leaves=6,
)


def written(condition: Condition) -> str:
    match condition:
        case Comparison(sign, left, right, _):
            return f"{_side(left)}{sign} {_side(right)}"
        case In(column, values):
            return f"{_side(column)} in ({', '.join(map(_side, values))})"
        case IsNull(of):
            return f"{_side(of)} is null"
        case Not(of):
            return f"not ({written(of)})"
        case Both(left, right):
            return f"({written(left)}) and ({written(right)})"
        case Either(left, right):
            return f"({written(left)}) or ({written(right)})"


def _side(side: Column | Gap | Literal) -> str:
    match side:
        case Column(name, is_previous):
            return f"prev({name})" if is_previous else name
        case Gap():
            return "gap"
        case Literal(Type.DURATION, _):
            return "PT1M30S"
        case Literal(Type.TEXT, value):
            escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case Literal(_, value):
            return f"{value:f}"


@given(CONDITIONS)
def test_a_condition_that_is_written_down_is_read_as_it_was(condition: Condition) -> None:
    assert condition_of(written(condition)) == condition


def test_and_binds_closer_than_or_and_not_closer_than_both() -> None:
    assert condition_of("not a is null and b is null or c is null") == Either(
        Both(Not(IsNull(Column("a"))), IsNull(Column("b"))), IsNull(Column("c"))
    )
    assert condition_of('a not in ("x")') == Not(In(Column("a"), (Literal(Type.TEXT, "x"),)))
    assert condition_of("a is not null") == Not(IsNull(Column("a")))
    assert condition_of("a = -1.50") == Comparison("=", Column("a"), Literal(Type.NUMBER, Decimal("-1.5")), Type.NUMBER)


@pytest.mark.parametrize(
    ("written_otherwise", "text"),
    [
        ("a IS NOT NULL AND NOT b = 'x' Or c IN ('x', 'y')", 'a is not null and not b = "x" or c in ("x", "y")'),
        ("a == PREV(a) and GAP <= PT5S and c = TRUE", "a = prev(a) and gap <= PT5S and c = true"),
        ("a <> 'AND'", 'a != "AND"'),
        (r"""a = 'it\'s "it"' or a = "it's" """, r"""a = "it's \"it\"" or a = "it's" """),
    ],
)
def test_words_may_be_in_capitals_and_texts_and_signs_are_written_as_those_of_watches(
    written_otherwise: str, text: str
) -> None:
    assert condition_of(written_otherwise) == condition_of(text)


def test_only_prev_and_gap_look_back() -> None:
    assert looks_back(condition_of("a = 1 or not (gap > PT1S)"))
    assert looks_back(condition_of("a = prev(a)"))
    assert not looks_back(condition_of("a = b and c is null"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "ends, where it must have a column"),
        ("a =", "ends, where it must have a column"),
        ("a", "ends, where it must have a comparison"),
        ("a b", r"has b at character 3, where it must have =, !="),
        ("1 = a", "has 1 at character 1, where it must have a column: constants stand on the right"),
        ('a < "x"', "has < at character 3, where it must have = or !=: only numbers"),
        ("a = PT5S", "must have `gap`: only it is compared with a duration"),
        ("gap = 5", "must have a duration such as PT5S"),
        ('a in ("x", 1)', r"has 1 at character 12, where it must have texts, numbers, or true and false, all of one"),
        ("a in ()", r"has \) at character 7"),
        ("prev(a", r"ends, where it must have `\)`"),
        ("prev(and) = 1", "has and at character 6, where it must have a column"),
        ("(a = 1", r"ends, where it must have `\)`"),
        ("a = 1)", r"has \) at character 6, where it must have `and`, `or`, or the end"),
        ("a = 'x", "cannot be read from character 4 on"),
        ("prev(AND) = 1", "has and at character 6, where it must have a column"),
        ("a == = 1", "has = at character 6, where it must have a column"),
        ("a = 1x", "cannot be read from character 4 on"),
        ("a = 1; drop", "cannot be read from character 6 on"),
        ("gap > P2D", "P2D is 172800 seconds; it can be from PT1S to P1D"),
        ("not " * 30 + "a = 1", "nested 20 deep"),
        ("a = 1 and " * 300 + "a = 1", "at most 2,000 characters"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_place_and_what_must_be_there(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        condition_of(text)


def loaded(tmp_path: Path, **content: Any) -> Any:
    file = tmp_path / "weir.yaml"
    file.write_text(json.dumps(content))
    return load_stack_config(file)


def test_patterns_start_analytics_without_a_view_too(tmp_path: Path) -> None:
    given = loaded(tmp_path, patterns={"storm": STORM})
    assert [name for name, _ in given.items()][-1] == "analytics"
    assert [name for name, _ in loaded(tmp_path, patterns={}).items()][-1] != "analytics"
    [pattern] = given.jobs.analytics.declared_patterns
    assert pattern.columns == ("account", "api_key_id", "model", "output_tokens", "status")
    assert pattern.numbers == {"output_tokens"}
    assert {"request_lsn", "completion_lsn"} <= {*given.jobs.analytics.columns}


def test_what_a_driver_stores_of_patterns_is_read_back_as_it_was(tmp_path: Path) -> None:
    given = loaded(tmp_path, patterns={"storm": STORM, "burst": BURST}).jobs.analytics
    assert AnalyticsConfig.model_validate(json.loads(json.dumps(given.model_dump(mode="json")))) == given


def test_a_pattern_has_another_version_with_any_other_word_but_its_name(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"partition_by": ["api_key_id", "account"]},
        {"pattern": "A B{8,}"},
        {"define": {"A": 'status = "error"'}},
        {"within": "PT9M"},
        {"grace": "PT2M"},
        {"measures": {"failures": "count(A)"}},
        {"after_match": "skip to next row"},
    ]
    found = loaded(tmp_path, patterns={f"p{n}": {**STORM, **changed} for n, changed in enumerate(changes)})
    assert len({pattern.version for pattern in found.jobs.analytics.declared_patterns}) == len(changes)
    same = loaded(tmp_path, patterns={"a": STORM, "b": STORM}).jobs.analytics.declared_patterns
    assert same[0].version == same[1].version
    assert same[0].match_id(1, 2) != same[1].match_id(1, 2)


def test_a_burst_has_another_version_with_any_other_word_but_its_name_and_another_match_for_each_key_and_window(
    tmp_path: Path,
) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"times": 11},
        {"at_least": 21},
        {"window": "PT2M"},
        {"over": "PT2H"},
        {"where": 'status = "error"'},
    ]
    given = {f"p{n}": {**BURST, "burst": {**BURST["burst"], **changed}} for n, changed in enumerate(changes)}
    given["grace"] = {**BURST, "grace": "PT2M"}
    given["keys"] = {**BURST, "partition_by": ["account"]}
    found = loaded(tmp_path, patterns=given).jobs.analytics.declared_patterns
    assert len({burst.version for burst in found}) == len(changes) + 2
    bursts = [burst for burst in found if isinstance(burst, Burst)]
    keys: list[tuple[str | None, ...]] = [("a", None), ("a", "None"), (None, "a"), ("b", "a")]
    assert len({burst.match_id(key, at) for burst in bursts for key in keys for at in (0, 1)}) == len(found) * 8
    assert bursts[0].text == "burst: 20 or more in PT1M, 10 times the mean of PT1H before"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"pattern": "A"}, "pattern cannot be given with `burst`"),
        ({"within": "PT1M"}, "within cannot be given with `burst`"),
        ({"measures": {"n": "count(*)"}}, "measures cannot be given with `burst`"),
        ({"after_match": "skip to next row"}, "after_match cannot be given with `burst`"),
        ({"burst": None}, "pattern is missing: a pattern has `pattern` and `within`, or `burst`"),
        ({"burst": {"times": 1, "at_least": 2}}, "times"),
        ({"burst": {"times": 2}}, "at_least"),
        ({"burst": {"times": 2, "at_least": 2, "window": "PT90S"}}, "must be whole minutes from PT1M to PT10M"),
        ({"burst": {"times": 2, "at_least": 2, "window": "PT11M"}}, "must be whole minutes from PT1M to PT10M"),
        ({"burst": {"times": 2, "at_least": 2, "window": "PT7M"}}, "must be a multiple of window, which is PT7M"),
        ({"burst": {"times": 2, "at_least": 2, "over": "P2D"}}, "it can be from PT1S to P1D"),
        ({"burst": {"times": 2, "at_least": 2, "where": "gap > PT1S"}}, "prev and gap are for `define`"),
        ({"burst": {"times": 2, "at_least": 2, "where": "model ="}}, "'model =' ends"),
        ({"burst": {"times": 2, "at_least": 2, "where": "statu = 1"}}, r"patterns\.p\.burst\.where names statu"),
    ],
)
def test_a_burst_that_cannot_be_looked_for_is_refused_and_told_why(
    tmp_path: Path, changed: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        loaded(tmp_path, patterns={"p": {**BURST, **changed}})


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"partition_by": []}, "partition_by"),
        ({"partition_by": ["output_tokens"]}, r"patterns\.p\.partition_by names output_tokens, but there it can name"),
        ({"define": {"A": "statu = 1"}}, r"patterns\.p\.define\.A names statu.*numbers that completions report"),
        ({"define": {"A": 'output_tokens = "x"'}}, r"patterns\.p\.define\.A names output_tokens.*the texts"),
        ({"define": {"A": "model = true"}}, r"patterns\.p\.define\.A names model.*the booleans"),
        ({"define": {"A": "prev(nowhere) is null"}}, r"patterns\.p\.define\.A names nowhere.*columns of outcomes"),
        ({"measures": {"n": "sum(model)"}}, r"patterns\.p\.measures\.n names model.*numbers"),
        ({"define": {"C": 'status = "error"'}}, "C is no variable of the pattern, which has A, B"),
        ({"measures": {"n": "count(C)"}}, "C is no variable of the pattern"),
        ({"measures": {"n": "sum(distinct output_tokens)"}}, "only count has distinct"),
        ({"measures": {"n": "avg(output_tokens)"}}, r"'avg\(output_tokens\)' is no measure: count\(\*\), count\(A\)"),
        ({"measures": {"n": "sum(*)"}}, r"'sum\(\*\)' needs a column"),
        ({"define": {"A": "status ="}}, "A: 'status =' ends"),
        ({"pattern": "A*"}, "matches no row at all"),
        ({"within": "P2D"}, "it can be from PT1S to P1D"),
        ({"order_by": "received_at"}, "event_time"),
        ({"after_match": "skip to last B"}, "skip past last row"),
    ],
)
def test_a_pattern_that_cannot_be_looked_for_is_refused_and_told_why(
    tmp_path: Path, changed: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        loaded(tmp_path, patterns={"p": {**STORM, **changed}})


def test_matches_are_kept_as_long_as_they_may_be_revised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="revise_days is 40, but must be at most keep_days, which is 35"):
        loaded(tmp_path, jobs={"analytics": {"revise_days": 40}})


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_text_that_postgres_cannot_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot have the character"):
        condition_of(f'model = "{text}"')


def test_values_that_differ_are_counted_once_each_of_all_rows_or_of_a_variable() -> None:
    rows = [{"region": "eu"}, {"region": "us"}, {}, {"region": "us"}, {"region": "ap"}]
    names = ["A", "B", "B", "B", "A"]
    texts = {"count(distinct region)": 3, "count( distinct  B.region )": 1, "count(region)": 4, "count(B.region)": 2}
    assert {text: measure_of("n", text).value(rows, names) for text in texts} == texts
    assert measure_of("n", "count(distinct  A.region)").text == "count(distinct A.region)"

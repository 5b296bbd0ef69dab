"""Conditions of watches: what is read, and where each mistake is and what was meant there."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import cli.watch
from metering.contracts.model import Kind
from metering.watches.expressions import And, ColumnTest, Not, Operator, Or, column_tests, only_account
from metering.watches.parser import MAX_DEPTH, MAX_TESTS, parse
from metering.watches.tokens import MAX_BYTES, Mistake
from tests.rules.watch_conditions import COLUMNS

EU, BIG = (
    ColumnTest("model", Kind.TEXT, Operator.EQ, ("eu",)),
    ColumnTest("output_tokens", Kind.INTEGER, Operator.GT, (5,)),
)
CACHED = ColumnTest("cached", Kind.BOOLEAN, Operator.EQ, (True,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('model = "eu" and output_tokens > 5 or cached', Or((And((EU, BIG)), CACHED))),
        ("MODEL_IS_NOT_THIS", None),
        ("model = 'eu' AND (output_tokens > +5 and cached = true)", And((EU, BIG, CACHED))),
        ("not not cached", Not(Not(CACHED))),
        ("model is not null", Not(ColumnTest("model", Kind.TEXT, Operator.IS_NULL))),
        ("output_tokens not in (1, 2, 1)", Not(ColumnTest("output_tokens", Kind.INTEGER, Operator.IN, (1, 2)))),
        (
            'account.tags."cost-center" starts with "\\"x"',
            ColumnTest("account.tags.cost-center", Kind.TEXT, Operator.STARTS_WITH, ('"x',)),
        ),
        ("output_tokens <> 5.0", ColumnTest("output_tokens", Kind.INTEGER, Operator.NE, (5,))),
    ],
)
def test_a_condition_is_read_as_sql_reads_it(text: str, expected: object) -> None:
    if expected is None:
        with pytest.raises(Mistake):
            parse(text, COLUMNS)
    else:
        assert parse(text, COLUMNS) == expected


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ('modle = "x"', 1, "outcomes have no column modle; did you mean model?"),
        ('cached and account.tag.team = "x"', 12, "did you mean account.tags.team?"),
        ("colour = 1", 1, "there are account, account.tags.team, cached,"),
        ('output_tokens > "x"', 17, "output_tokens is compared with a whole number, such as 100000"),
        ("output_tokens > 1.5", 17, "a whole number"),
        ("output_tokens > 1000000000000000000", 17, "a whole number"),
        ("gpu_seconds > 0.0000001", 15, "at most 6 decimals"),
        ("gpu_seconds > 0.1000000000000000000000000000000001", 15, "at most 6 decimals"),
        ("model > 'a'", 7, "which has no order: use =, !=, in or starts with"),
        ("model = null", 9, "(is null tests for nothing)"),
        ("output_tokens starts with 'a'", 15, "only texts have a start"),
        ('model = "a', 9, 'close it with "'),
        ("model = 'a' model", 13, "expected `and`, `or` or the end"),
        ("(model = 'a'", 13, "expected `)`, but the condition ends here"),
        ("model in 'a'", 10, "expected a list"),
        ("model in ('a' 'b')", 15, "expected `,` or `)`"),
        ("model", 6, "expected a test of model: =, !=, in, starts with, is null"),
        ("output_tokens > 1e5", 17, "write 100000 or 0.5"),
        ("cached ; cached", 8, "';' means nothing here"),
        ("", 1, "expected a column, such as model"),
        ("cached and\n  modle = 'x'", 14, "did you mean model?"),
    ],
)
def test_a_mistake_points_at_its_column_and_says_what_is_meant_there(text: str, column: int, words: str) -> None:
    with pytest.raises(Mistake) as raised:
        parse(text, COLUMNS)
    assert raised.value.column == column
    assert words in str(raised.value)
    line, caret = raised.value.pointing.split("\n")
    assert line in text
    assert len(caret) - 1 == len(text[: column - 1].rpartition("\n")[2])


WORDS = ["cached", "not", "and", "(", ")", "or", "=", "1", "'a'", "model", "in", ",", "is", "null"]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_a_condition_or_a_mistake_within_it(text: str) -> None:
    try:
        parse(text, COLUMNS)
        column = 1
    except Mistake as mistake:
        column = mistake.column
    assert 1 <= column <= len(text) + 1


def test_a_condition_is_as_long_as_it_may_be_and_no_longer() -> None:
    most = " and ".join(["cached"] * MAX_TESTS)
    assert len(list(column_tests(parse(most, COLUMNS)))) == MAX_TESTS
    deep = "(" * (MAX_DEPTH - 1) + "cached" + ")" * (MAX_DEPTH - 1)
    assert parse(deep, COLUMNS) == CACHED
    for text in (f"{most} and cached", f"({deep})", f"model = '{'a' * MAX_BYTES}'"):
        with pytest.raises(Mistake):
            parse(text, COLUMNS)


@pytest.mark.parametrize(
    ("text", "account"),
    [
        ('account = "a" and cached', "a"),
        ('cached and account in ("a")', "a"),
        ('account in ("a", "b")', None),
        ('account = "a" or cached', None),
        ('not account = "a"', None),
        ("cached", None),
    ],
)
def test_a_watch_is_of_an_account_if_it_is_true_of_no_other(text: str, account: str | None) -> None:
    assert only_account(parse(text, COLUMNS)) == account


def test_the_command_takes_a_condition_of_several_lines_and_as_long_as_the_language_has_it() -> None:
    given = 'model in (\n\t"' + '", "'.join(f"model-{n}" for n in range(200)) + '"\n)'
    assert cli.watch._condition(f" {given}\n") == given
    with pytest.raises(typer.BadParameter, match="control characters"):
        cli.watch._condition('model = "\x1b"')

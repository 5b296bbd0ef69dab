"""Method: what every test file assigns to, read from its source: a constant of the product is not among it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PATCHERS = {"setattr", "patch", "object"}
"""`monkeypatch.setattr`, the builtin, `mock.patch` and `mock.patch.object`: a dotted text, or an object and a name."""


def assigned(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each attribute that is assigned to, directly or by a patch."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and _called(node.func) in PATCHERS:
            texts = [one.value for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            for text in texts[:1]:
                yield node.lineno, text.rpartition(".")[2]


def _called(function: ast.expr) -> str | None:
    return getattr(function, "attr", getattr(function, "id", None))


def constants(source: str) -> list[tuple[int, str]]:
    return [(line, name) for line, name in assigned(source) if name.isupper()]


@pytest.mark.parametrize(
    "source",
    [
        'monkeypatch.setattr(module, "MOST_ROWS", 3)',
        'monkeypatch.setattr("jobs.module.MOST_ROWS", 3)',
        'context.setattr(module, "_MOST_ROWS", 3, raising=False)',
        'setattr(module, "MOST_ROWS", 3)',
        'mock.patch("jobs.module.MOST_ROWS", 3)',
        'mock.patch.object(module, "MOST_ROWS", 3)',
        "module.MOST_ROWS = 3",
        "module.MOST_ROWS += 3",
        "other, module.MOST_ROWS = 1, 3",
        "package.module.MOST_ROWS: int = 3",
        "del module.MOST_ROWS",
    ],
)
def test_a_constant_that_is_assigned_to_is_found(source: str) -> None:
    assert [name.strip("_") for _, name in constants(source)] == ["MOST_ROWS"]


@pytest.mark.parametrize(
    "source",
    [
        'monkeypatch.setattr(module, "read", double)',
        'monkeypatch.setenv("WEIR_TABLES", "t")',
        "MOST_ROWS = 3",
        "a.b = 3",
    ],
)
def test_a_function_a_variable_and_a_constant_of_the_test_are_not(source: str) -> None:
    assert constants(source) == []


def test_no_test_assigns_to_a_constant_of_the_product() -> None:
    found = [
        f"{file.relative_to(TESTS.parent)}:{line} {name}"
        for file in sorted(TESTS.rglob("*.py"))
        for line, name in constants(file.read_text(encoding="utf-8"))
    ]
    assert found == [], (
        "a test that patches a constant shows a product that nobody can have: make it an argument with the constant as "
        "its default, or a field of the object that it limits, and let the test pass its own"
    )

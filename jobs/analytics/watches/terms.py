"""The condition of a watch → terms: tests that must all be true, by which its rows are found, and what is left of it.

Negations go to the tests first, by De Morgan's laws, which SQL's three values keep. Where a condition joins by `or`
what can be found by a value or a range each, there is a term for each: a row that any of them takes is a hit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from metering.contracts.model import Kind
from metering.watches.expressions import ORDERED, And, ColumnTest, Expression, Not, Operator, Or, conjuncts

HASHED = (Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN)
MAX_TERMS = 16
_OPPOSITE = {
    Operator.EQ: Operator.NE,
    Operator.NE: Operator.EQ,
    Operator.LT: Operator.GE,
    Operator.LE: Operator.GT,
    Operator.GT: Operator.LE,
    Operator.GE: Operator.LT,
}


@dataclass(frozen=True)
class Watch:
    """A stored query."""

    id: int
    when: Expression


@dataclass(frozen=True)
class Atom:
    """One test, or its negation."""

    test: ColumnTest
    is_negated: bool = False

    @property
    def has_keys(self) -> bool:
        """Whether it names all values that a row may have: it is found by hash."""
        return not self.is_negated and self.test.operator in (Operator.EQ, Operator.IN) and self.test.kind in HASHED

    @property
    def has_range(self) -> bool:
        """Whether its rows are neighbors in the order of a column of numbers."""
        is_equal = self.test.operator is Operator.EQ and self.test.kind not in HASHED
        return not self.is_negated and (self.test.operator in ORDERED or is_equal)


@dataclass(frozen=True)
class Term:
    """Rows that all atoms and the rest (None: nothing) take."""

    atoms: tuple[Atom, ...]
    rest: Expression | None

    @property
    def is_found(self) -> bool:
        """Whether an atom says where its rows are."""
        return any(atom.has_keys or atom.has_range for atom in self.atoms)


def terms_of(expression: Expression) -> Sequence[Term]:
    """At least one. Each row that the expression takes, one of them takes, and no other row."""
    parts = conjuncts(negations_inward(expression))
    for number, part in enumerate(parts):
        if isinstance(part, Or) and len(part.parts) <= MAX_TERMS:
            others = (*parts[:number], *parts[number + 1 :])
            terms = [_term((*others, *conjuncts(alternative))) for alternative in part.parts]
            if all(term.is_found for term in terms):
                return terms
    return [_term(parts)]


def negations_inward(expression: Expression, *, is_negated: bool = False) -> Expression:
    """The same with `Not` before tests alone, and none before a comparison, which has an opposite."""
    match expression:
        case Not(of):
            return negations_inward(of, is_negated=not is_negated)
        case And(parts) | Or(parts):
            kind = And if isinstance(expression, And) != is_negated else Or
            return kind(tuple(_flat(kind, parts, is_negated=is_negated)))
        case ColumnTest() if is_negated:
            opposite = _OPPOSITE.get(expression.operator)
            return Not(expression) if opposite is None else replace(expression, operator=opposite)
    return expression


def _flat(kind: type[And] | type[Or], parts: Sequence[Expression], *, is_negated: bool) -> Iterator[Expression]:
    for part in parts:
        inner = negations_inward(part, is_negated=is_negated)
        yield from inner.parts if isinstance(inner, kind) else (inner,)


def _term(parts: Sequence[Expression]) -> Term:
    atoms: list[Atom] = []
    rest: list[Expression] = []
    for part in parts:
        if (atom := _atom(part)) is None:
            rest.append(part)
        else:
            atoms.append(atom)
    left = None if not rest else rest[0] if len(rest) == 1 else And(tuple(rest))
    return Term(tuple(atoms), left)


def _atom(part: Expression) -> Atom | None:
    test = part.of if isinstance(part, Not) else part
    if not isinstance(test, ColumnTest) or (test.operator is Operator.IN and test.kind not in HASHED):
        return None
    return Atom(test, is_negated=isinstance(part, Not))

"""One change each of what a valid record says, before it is written."""

from __future__ import annotations

import random

from tests.corpus.drafts import Draft, Members, Mutation, Raw, members_of
from tests.corpus.odd_values import INSTANTS, NUMBERS, nested, odd, other_form, text


def _place(chance: random.Random, draft: Draft) -> tuple[Members, int]:
    return chance.choice(list(members_of(draft.tree)))


def _odd_value(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    members[at][1] = odd(chance)


def _odd_number(chance: random.Random, draft: Draft) -> None:
    places = [(members, at) for members, at in members_of(draft.tree) if isinstance(members[at][1], int | float)]
    members, at = chance.choice(places) if places else _place(chance, draft)
    members[at][1] = Raw(chance.choice(NUMBERS))


def _odd_text(chance: random.Random, draft: Draft) -> None:
    places = [(members, at) for members, at in members_of(draft.tree) if isinstance(members[at][1], str)]
    members, at = chance.choice(places) if places else _place(chance, draft)
    members[at][1] = text(chance)


def _odd_instant(chance: random.Random, draft: Draft) -> None:
    timed = [place for place in members_of(draft.tree) if place[0][place[1]][0] in TIMES]
    members, at = chance.choice(timed) if timed else _place(chance, draft)
    members[at][1] = chance.choice(INSTANTS)


TIMES = {"time", "senttime", "effective_from"}


def _null(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    members[at][1] = None


def _missing(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    del members[at]


def _key_twice(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    key, value = members[at]
    twin = Raw(f'"\\u{ord(key[0]):04x}{key[1:]}"') if chance.random() < 0.3 and key.isascii() and key else key
    members.insert(chance.randrange(len(members) + 1), [twin, chance.choice([value, odd(chance)])])


def _key_in_another_case(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    members[at][0] = other_form(str(members[at][0]), chance)


def _both_cases(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    members.insert(chance.randrange(len(members) + 1), [str(members[at][0]).upper(), odd(chance)])


def _unknown_member(chance: random.Random, draft: Draft) -> None:
    members, _ = _place(chance, draft)
    key = chance.choice(["x", "", "data_base64", "status", "tokens", "effective_from", "k" * 600, "\u0000", "a.b", "$"])
    members.insert(chance.randrange(len(members) + 1), [key, odd(chance)])


def _value_of_another(chance: random.Random, draft: Draft) -> None:
    (members, at), (others, other) = _place(chance, draft), _place(chance, draft)
    # As text, for a tree must not hold itself.
    part = Draft(others[other][1], None)
    part.write()
    members[at][1] = Raw((part.value or b"").decode("utf-8", "surrogatepass"))


def _exchanged(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    other = chance.randrange(len(members))
    members[at][1], members[other][1] = members[other][1], members[at][1]


def _in_an_array(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    members[at][1] = chance.choice([[members[at][1]], Members([["value", members[at][1]]])])


def _other_type(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    value = members[at][1]
    if isinstance(value, str) and not isinstance(value, Raw):
        members[at][1] = Raw(chance.choice([value, "1", "true"]))
    else:
        part = Draft(value, None)
        part.write()
        members[at][1] = (part.value or b"").decode("utf-8", "replace")


def _other_form(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    members[at][1] = other_form(str(members[at][1]), chance)


def _nested(chance: random.Random, draft: Draft) -> None:
    members, at = _place(chance, draft)
    if chance.random() < 0.5:
        members.append(["deep", nested(chance)])
    else:
        members[at][1] = nested(chance)


def _another_order(chance: random.Random, draft: Draft) -> None:
    members, _ = _place(chance, draft)
    chance.shuffle(members)


def _other_style(chance: random.Random, draft: Draft) -> None:
    draft.spacing = chance.choice([(", ", ": "), (",\n\t", " :\r\n"), (",", ": ")])
    draft.is_ascii = False


OF_TREES: dict[str, Mutation] = {
    "odd value": _odd_value,
    "odd number": _odd_number,
    "odd text": _odd_text,
    "odd instant": _odd_instant,
    "null": _null,
    "missing": _missing,
    "key twice": _key_twice,
    "key in another case": _key_in_another_case,
    "key in both cases": _both_cases,
    "unknown member": _unknown_member,
    "value of another": _value_of_another,
    "exchanged": _exchanged,
    "in an array": _in_an_array,
    "other type": _other_type,
    "other form": _other_form,
    "nested": _nested,
    "another order": _another_order,
    "other style": _other_style,
}

"""Who was forgotten, without the name: an HMAC by a key that the operator keeps, and the pseudonym that replaces it."""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import quote

MIN_KEY_CHARACTERS = 32
KEYS_VARIABLE = "WEIR_ERASURE_KEYS"
LOST = "lost:"
"""Before the id of a key: nobody has its secret any more."""
_PSEUDONYM = re.compile(r"erased-[1-9][0-9]*")
_ID = re.compile(r"[0-9a-f]{16}")
_OF_A_NAME = "0-9A-Za-z_@.-"
"""What continues a name: `u1` is not found in `u12` or `u1@example.org`."""
_NOT_IN_UTF_8 = re.compile("[\ud800-\udfff]")
"""Half a character, which JSON can escape."""


@dataclass(frozen=True)
class ErasureKey:
    """A secret by which people are recognised. `id` names it, and tells nothing of it."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """16 hexadecimal digits."""
        return hmac.new(self.secret, b"weir erasure key", sha256).hexdigest()[:16]

    def person(self, account: str, user_id: str) -> bytes:
        """32 bytes for a user of an account. The length of the account keeps ("a", "bc") apart from ("ab", "c")."""
        of_account = account.encode()
        # A text of a document may be anything that JSON can escape.
        named = b"%d:%s%s" % (len(of_account), of_account, user_id.encode(errors="surrogatepass"))
        return hmac.new(self.secret, b"weir erased person " + named, sha256).digest()


def keys_of(text: str) -> tuple[ErasureKey, ...]:
    """Secrets separated by commas: the first is of new erasures, the others recognise those of earlier ones.

    What is LOST is no secret. Raises ValueError, without the text, where one is shorter than MIN_KEY_CHARACTERS.
    """
    secrets = [secret for secret in _entries(text) if not secret.startswith(LOST)]
    if any(len(secret) < MIN_KEY_CHARACTERS for secret in secrets):
        raise ValueError(
            f"a key has fewer than {MIN_KEY_CHARACTERS} characters; make one with `openssl rand -hex 32`, and separate "
            "keys by commas"
        )
    return tuple(ErasureKey(secret.encode()) for secret in dict.fromkeys(secrets))


def lost_keys_of(text: str) -> frozenset[str]:
    """The ids of keys of which the same text says that they are lost. Raises ValueError for what is no id."""
    ids = frozenset(entry.removeprefix(LOST).strip() for entry in _entries(text) if entry.startswith(LOST))
    if not all(_ID.fullmatch(key_id) for key_id in ids):
        raise ValueError(f"after {LOST} comes the id of a key, 16 hexadecimal digits, as ingestion says it")
    return ids


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def pseudonym(number: int) -> str:
    """What stands in the place of a user: the same in every row, so that counts of users stay as they are."""
    return f"erased-{number}"


def is_pseudonym(user_id: str) -> bool:
    """Whether a name is one that `pseudonym` gives."""
    return _PSEUDONYM.fullmatch(user_id) is not None


def written_forms(text: str) -> tuple[str, ...]:
    """How a name stands in a document: plain, in JSON, in a URL, and alone in base64."""
    escaped = json.dumps(text)[1:-1]
    upper = re.sub(r"\\u[0-9a-f]{4}", lambda found: "\\u" + found.group()[2:].upper(), escaped)
    in_json = json.dumps(text, ensure_ascii=False)[1:-1]
    in_base64 = base64.b64encode(text.encode()).decode()
    return tuple(dict.fromkeys((text, in_json, escaped, upper, quote(text, safe=""), in_base64)))


def mention(text: str) -> str:
    """A regular expression, valid in Python, Rust and Postgres, that finds a name in a document in any written form.

    A name of digits alone is found only as a JSON text: otherwise it would be found in every number.
    """
    forms = "|".join(re.escape(form) for form in written_forms(text))
    if text.isascii() and text.isdigit():
        return f'"({forms})\\\\?"'
    return f"(^|[^{_OF_A_NAME}])({forms})($|[^{_OF_A_NAME}])"


def replaced(document: str, user_id: str, name: str) -> str:
    """A JSON document with another name wherever one of its texts is the user's: its other texts stay.

    Raises ValueError for what is no JSON, RecursionError for what is nested too deeply. Numbers keep their digits.
    """
    changed = _with(json.loads(document, parse_float=_Digits, parse_int=_Digits), user_id, name)
    return _written(changed)


class _Digits(str):
    """A number as it was written."""

    __slots__ = ()


def _with(value: object, user_id: str, name: str) -> object:
    if isinstance(value, dict):
        return {key: _with(inner, user_id, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with(inner, user_id, name) for inner in value]
    return name if isinstance(value, str) and not isinstance(value, _Digits) and value == user_id else value


def _written(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(key)}:{_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, str):
        return str(value) if isinstance(value, _Digits) else _text(value)
    return json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=_NOT_IN_UTF_8.search(value) is not None)


def texts_in(document: str) -> set[str]:
    """Every text in a JSON document, and every number as it is written; of what is no JSON, what is between quotes."""
    try:
        parsed = json.loads(document, parse_float=_Digits, parse_int=_Digits)
    except (ValueError, RecursionError):
        return set(_unquoted(document))
    found: set[str] = set()
    pending: list[object] = [parsed]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, str):
            found.add(str(value))
    return found


def _unquoted(document: str) -> Iterable[str]:
    for found in re.findall(r'"((?:[^"\\]|\\.)*)"', document):
        try:
            yield str(json.loads(f'"{found}"'))
        except ValueError:
            yield found


@dataclass(frozen=True)
class Erased:
    """A person who was forgotten: `number` is that of the erasure, `person` an HMAC by the key `key_id`."""

    number: int
    account: str
    person: bytes
    key_id: str


class People:
    """Recognises those who were forgotten."""

    def __init__(self, erased: Iterable[Erased], keys: Iterable[ErasureKey], lost: Collection[str] = ()) -> None:
        """Raises UnknownKey where the key of an erasure is not among `keys`, unless its id is among `lost`."""
        by_id = {key.id: key for key in keys}
        self.unrecognised: list[int] = []
        """Numbers of erasures whose key is lost: later events of these people are as any others."""
        self._by_account: dict[str, dict[ErasureKey, dict[bytes, int]]] = {}
        for row in erased:
            if row.key_id not in by_id and row.key_id in lost:
                self.unrecognised.append(row.number)
                continue
            if row.key_id not in by_id:
                raise UnknownKey(row.key_id)
            of_key = self._by_account.setdefault(row.account, {}).setdefault(by_id[row.key_id], {})
            of_key[row.person] = row.number

    @property
    def accounts(self) -> list[str]:
        """Those of which somebody was forgotten."""
        return sorted(self._by_account)

    def numbers(self, account: str, names: Iterable[str]) -> dict[str, int]:
        """Which of these names are of people who were forgotten: the numbers of their erasures, by name.

        Of somebody who was forgotten again under another key, that of the first, which is in the earlier rows.
        """
        found: dict[str, int] = {}
        keys = self._by_account.get(account, {})
        for name in names:
            for key, people in keys.items():
                if (number := people.get(key.person(account, name))) is not None:
                    found[name] = min(number, found.get(name, number))
        return found


class UnknownKey(LookupError):
    """The key of an erasure was not given. `args` has its id."""

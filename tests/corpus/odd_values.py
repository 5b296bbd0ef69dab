"""What stands in a document where nobody expected it, as JSON writes it: at limits, in odd spellings, or no JSON."""

from __future__ import annotations

import json
import random
import unicodedata

from tests.corpus.drafts import Raw

NUMBERS = [
    *("0", "-0", "-0.0", "1", "-1", "1E2", "1e+2", "120.0", "12.5e1", "1.0", "0.1", "1e-400", "1e400", "-1e400"),
    *("01", "+1", ".5", "1.", "1e", "0x10", "1_000", "NaN", "-Infinity", "Infinity", "--1", "1e9999999999"),
    *(str(10**power + step) for power in (10, 12, 18, 19, 38) for step in (-1, 0, 1)),
    *(str(2**power + step) for power in (31, 53, 63, 64) for step in (-1, 0, 1)),
    *("9" * digits for digits in (308, 309, 999, 1_000, 1_001, 4_300, 4_301)),
    *("0." + "3" * digits for digits in (12, 13, 17, 37, 38, 39, 998, 999)),
    *("1" * 20 + "." + "1" * 20, "1e38", "1e-38", "0e50", "0E-1000000", "-9223372036854775809"),
    *("1000000000000.0000001", "0.1234567890123456789e10", "99999999.999999999999", "0.0000000000001"),
]
TEXTS = [
    *("", " ", "x" * 512, "x" * 513, "ß" * 256, "ß" * 256 + "s", "😀" * 128, "😀" * 128 + "x", "漢" * 171),
    *("\u0000", "a\u0000b", "\ud83d", "\ude00\ud83d", "Zoe\u0308", "Zoë", "ﬁ", "\u0130", "\u00a0"),
    *("\u0085", "\u2028", "\ufeff", "\ufffe", "\uffff", "\U0010ffff", "a\tb", "a\r\nb", "\u007f", "\u001f"),
    *("\\", '"', "\\u0000", "\\.", "\\N", "NULL", "null", "true", "{", "[1,2)", ",", "'", "acme ", "ACME", "Acme"),
    *("1.0", "1", "17", "-1", "1e2", "completed", "cancelled", "Completed", "provider", "12\n", "000123", "١٢"),
    *("999999999999999999", "1000000000000000000", "device/1", "weir", "source.heartbeat.v1", "eu-1\u202e"),
    *("UTC", "Europe", "../UTC", "/etc/localtime", "zone.tab", ".", "Pacific/Apia", "Etc/GMT+12", "EUR", "eur", "USD"),
]
INSTANTS = [
    *("2025-07-01T11:59:59Z", "2025-07-01t11:59:59z", "2025-07-01T11:59:59+00:00", "2025-07-01T11:59:59-00:00"),
    *("2025-07-01T17:29:59+05:30", "2025-07-01T11:59:59+18:00", "2025-07-01T11:59:59+18:01"),
    *("2025-07-01T11:59:59-18:00", "2025-07-01T11:59:59+23:59", "2025-07-01T11:59:59+24:00"),
    *("2025-07-01T11:59:59+05:60", "2025-07-01T11:59:59+0530", "2025-07-01T11:59:59+05", "2025-07-01T11:59:59"),
    *(f"2025-07-01T11:59:59.{'123456789' * 5}"[: 20 + digits] + "Z" for digits in (0, 1, 3, 6, 7, 9, 12, 40)),
    *("2025-07-01T11:59:59.9999999Z", "2025-07-01T11:59:59,5Z", "2025-06-30T23:59:60Z", "2025-07-01T24:00:00Z"),
    *("2025-02-29T00:00:00Z", "2028-02-29T00:00:00Z", "2025-13-01T00:00:00Z", "2025-00-10T00:00:00Z"),
    *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "1582-10-10T00:00:00Z"),
    *("1970-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", "2999-12-31T23:59:59.999999Z", "3000-01-01T00:00:00Z"),
    *("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999-14:00", "10000-01-01T00:00:00Z"),
    *("+2025-07-01T11:59:59Z", "-2025-07-01T11:59:59Z", "2025-7-1T11:59:59Z", "2025-07-01 11:59:59Z"),
    *("2025-W27-2T11:59:59Z", "20250701T115959Z", "2025-07-01T11:59Z", "2025-07-01", "infinity", "now", "epoch"),
    *("2025-05-27T12:00:00Z", "2025-05-27T11:59:59.999999Z", "2025-07-01T12:04:59Z", "2025-07-01T12:10:00Z"),
    *("٢٠٢٥-07-01T11:59:59Z", "2025-07-01T11:59:59Z\n", " 2025-07-01T11:59:59Z", "2025-07-01T11:59:59[UTC]"),
]
OTHERS = ["null", "true", "false", "True", "[]", "{}", "[null]", '{"a":1}', '[{"a":[]}]', "undefined", "'a'", ""]
LEVELS = [1, 2, 50, 500, *range(850, 1_006), 5_000]
"""Of nesting: around those that Java's reader (1,000) and Python's stack take."""


def odd(chance: random.Random) -> Raw:
    """Anything, as it is written."""
    kind = chance.randrange(10)
    if kind < 3:
        return Raw(chance.choice(NUMBERS))
    if kind < 6:
        return text(chance)
    if kind < 7:
        return Raw(json.dumps(chance.choice(INSTANTS)))
    return nested(chance) if kind == 7 else Raw(chance.choice(OTHERS))


def text(chance: random.Random) -> Raw:
    """A text, as its escapes or as its characters."""
    return Raw(json.dumps(chance.choice(TEXTS), ensure_ascii=chance.random() < 0.7))


def nested(chance: random.Random) -> Raw:
    """Arrays in arrays, or objects in objects."""
    levels = chance.choice(LEVELS)
    opening, closing = chance.choice([("[", "]"), ('{"a":', "}")])
    return Raw(opening * levels + "1" + closing * levels)


def other_form(value: str, chance: random.Random) -> str:
    """The same text to a person: another normal form, another case, white space around it."""
    forms = [unicodedata.normalize(form, f"{value}é") for form in ("NFC", "NFD", "NFKD")]
    return chance.choice([value.upper(), value.title(), f"{value} ", f" {value}", *forms])

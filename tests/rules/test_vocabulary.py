"""The retired words are gone from the product's code: each meant nothing to somebody who did not write it.

docs/explanation/earlier-names.md lists old and new names for whoever reads an earlier commit.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import ENTRIES
from jobs.runtime.postgres.relations import CATALOG, OWN
from monitoring.alerts import ALERTS
from monitoring.metrics import METRICS

ROOT = Path(__file__).parents[2]
PRODUCT = (
    *("metering", "jobs", "catalog", "deployment", "webhooks", "api", "cli", "laptop", "traffic", "monitoring"),
    "dashboard",
    *("charts", "reference"),
)
MIGRATIONS = "jobs/runtime/postgres/migrations/versions"

MODULES = {
    "way_down": "explain",
    "careful_start": "quarantine_start",
    "plain_look": "raw_scan",
    "looked_records": "scanned_records",
    "few_records": "driver_records",
    "few_rows": "driver_rows",
    "held_commit": "known_commit",
    "obstacles": "transient_errors",
    "away": "unavailable",
    "remembered": "rules_backup",
    "resting": "idle_trigger",
    "rules_in_force": "effective_rules",
    "pace": "adaptive_heartbeat",
    "set_aside": "quarantine",
    "kept_contracts": "stored_contracts",
    "marks_told": "mark_counts",
    "untold": "unpropagated_deletions",
    "never_there": "transient_prices",
    "decisions_told": "journal_decisions",
    "versions_told": "journal_versions",
    "supposed": "assumptions",
    "again": "restart, correction_rows",
    "told": "documents",
    "kept": "retained",
    "named": "replacements",
    "copied": "copy",
    "consumed": "partition_balance",
    "contracted": "late_contracts",
    "corrected": "corrections",
    "recomputed": "expected",
    "rejoined": "rejoins",
    "restated": "restatements",
    "examined": "examination",
    "proved": "proof",
    "priced": "prices",
    "appended": "append",
    "recorded": "audit_record",
    "listed": "check_rows, source_patterns",
    "spilled": "spill",
    "stored": "database",
    "unequal": "columns",
    "gone": "reconciliation",
    "became": "fates",
    "words": "vocabulary",
    "judge": "validator",
    "judged_lines": "validated_lines",
    "questions": "parameters",
    "question": "query",
    "meter_question": "meter_query_request",
}
"""Names of modules that were participles, pronouns or riddles, and what took their place."""

NAMES = {
    "CarefulStart": "QuarantineStart",
    "PlainLook": "RawScan",
    "FewRecords": "DriverRecords",
    "FewOfTopic": "TopicLimits",
    "FewRows": "DriverRows",
    "HeldCommit": "KnownCommit",
    "Resting": "IdleTrigger",
    "Pace": "AdaptiveHeartbeat",
    "RulesInForce": "RulesHistory",
    "Untold": "UnpropagatedDeletions",
    "Supposed": "Assumptions",
    "Doing": "Phase",
    "Told": "Document",
    "obstacle_of": "transient_error_of",
    "database_is_away": "database_is_unavailable",
    "is_away": "is_unavailable",
    "is_resting": "is_idle",
    "last_words": "last_error, last_log_line",
    "told_of": "what it gives",
    "told_at": "when it was published",
    "said_of": "what it gives",
    "held_at": "effective_at",
    "marks_told": "mark_counts",
    "contracts_kept": "stored_contracts",
    "held_frontier": "batch_frontier",
    "few_new_rows": "driver_new_rows",
    "otherwise_told": "wrong_versions",
    "otherwise_decided": "wrong_decisions",
    "otherwise_priced": "wrong_prices",
    "places_set_aside": "quarantined_places",
    "set_aside": "quarantine",
    "refuse_if_over": "refuse_if_cancelled",
    "plain_look": "raw_scan",
    "careful_start": "quarantine_start",
    "Judge": "EventValidator",
    "came_back_as": "replayed_as",
    "CAME_BACK": "REPLAYED",
    "NONE_CAME_BACK": "NONE_REPLAYED",
    "judge": "validate, decide, classify, compare",
    "begin_anew": "restart_sequences",
    "BEGIN_ANEW": "START_OVER",
    "comes_round_within": "expect_round_within",
    "deciding_alone": "exclusive_decisions",
    "first_kept": "first_retained",
    "kept_port": "reuse_port",
    "most_rows_at_once": "max_batch_rows",
    "of_usage_alone": "of_usage_only",
    "StillJoined": "PendingDeletions",
    "SUPPOSED_VERSIONS_FROM": "ASSUMED_VERSIONS_FROM",
    "TELLS_NOBODY": "NO_RECEIVER",
    "UNTOLD_DELETIONS": "UNPROPAGATED_DELETIONS",
    "wait_until_gone": "wait_until_deleted",
    "WindowAsked": "WindowSelection",
    "obstacle": "error",
    "is_obstacle": "is_transient",
    "set_aside_here": "quarantined_here",
    "rests_wrongly": "is_idle_wrongly",
    "says_structured": "has_structured_type",
    "says_more": "reports_more",
    "LAST_WORDS_BYTES": "LAST_LINE_BYTES",
    "MeterQuestion": "MeterQueryRequest",
    "read_question": "query_request_in",
    "PUBLISHING_WAITS": "PUBLISHING_BLOCKED",
}
"""Identifiers that are retired everywhere in the product, and what took their place."""

JUDGE = re.compile(r"judg", re.IGNORECASE)
"""An event is validated by its contract; a rule decides, classifies or compares."""
GENERATOR = "traffic"
"""The generator has names of its own, which is no reason to change its files: it shares none with the product."""
LINK = re.compile(r"\(\S+\.md\)")
"""A link to a page, whose file may have an older name."""
HISTORY = ("docs/explanation/earlier-names.md", MIGRATIONS, "bench/results/", "tests/rules/test_vocabulary.py")
"""Texts that name what earlier releases had: the page of earlier names, migrations, measurements."""

PRONOUNS = frozenset({"one", "ones", "many", "those", "each", "said", "told", "asked"})
"""What a variable is not called: it has the name of what it holds (`entry`, `count`, `price`)."""

LIMITS = re.compile(r"_?(MOST|FEWEST|LEAST|SHORTEST|LONGEST)_[A-Z]\w*|_?([A-Z]+_)?AT_ONCE|_?(most|fewest)_\w+")
"""A limit is a MAX or a MIN; how much is taken at once is a BATCH."""

RIDDLES = re.compile(r"(^|_)(told|said|says|untold|unsaid|supposed|whoever|whatever|anew)(_|$)", re.IGNORECASE)
"""Parts of names that say nothing of what a thing is: call it published, reported, assumed or again."""

PUBLIC_RIDDLES = re.compile(r"(^|_)(told|said|says|untold|question|beats|resting|waits|obstacle|judge|anew|words)(_|$)")
"""Parts of names that a stranger scrapes or types."""

DIALECT = re.compile(r"\b([Ww]hoever|[Ww]hatever|[Aa]new|[Pp]uts? right|[Ss]tood still|[Ss]tands still)\b")
"""Words that a stranger stumbles over: each sentence with them had a plainer form."""

STORED: dict[str, str] = {"says": "the sentence of a check in the table `audits`"}
"""Retired words that tables, files or messages hold for ever, and why: an identifier must be called like them."""


def _modules() -> Iterator[Path]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if MIGRATIONS not in path.as_posix():
                yield path


def _names(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def test_no_module_has_a_retired_name() -> None:
    found = {path.relative_to(ROOT).as_posix(): MODULES[path.stem] for path in _modules() if path.stem in MODULES}
    assert found == {}, "call a module by what it holds"
    folders = {path.parent.name for path in _modules()} & MODULES.keys()
    assert folders == set()


def test_no_identifier_is_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in _modules()
        for line, name in _names(path)
        if (name in NAMES or _is_limit(path, name)) and name not in STORED
    ]
    assert found == [], "the page of earlier names has the word to use"


def _is_limit(path: Path, name: str) -> bool:
    return LIMITS.fullmatch(name) is not None and (name.isupper() or GENERATOR not in path.relative_to(ROOT).parts)


def test_no_identifier_is_a_riddle() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in _modules()
        if GENERATOR not in path.relative_to(ROOT).parts
        for line, name in _names(path)
        if RIDDLES.search(name) and name not in STORED
    ]
    assert found == [], "the page of earlier names has the word to use"


@pytest.mark.parametrize("name", ["is_told", "has_said", "_supposed", "BEGIN_ANEW", "told", "unsaid"])
def test_a_riddle_is_found(name: str) -> None:
    assert RIDDLES.search(name)


@pytest.mark.parametrize("name", ["toldo", "saids", "assumed", "published_at"])
def test_another_name_is_no_riddle(name: str) -> None:
    assert RIDDLES.search(name) is None


def test_no_public_name_is_a_riddle() -> None:
    """Metrics, alerts, tables, commands, and the members of answers: what is scraped or typed."""
    openapi = (ROOT / "docs/reference/openapi.json").read_text()
    public = {
        *(metric.name for metric in METRICS if "The earlier name of" not in metric.help),
        *(re.sub(r"(?<!^)(?=[A-Z])", "_", alert.name).lower() for alert in ALERTS),
        *((set(OWN) | set(CATALOG)) - {"contracts"}),
        *(name.replace("-", "_") for entry in ENTRIES for name in entry.name.split()),
        *re.findall(r'"(\w+)": ?\{', openapi),
    }
    assert {name for name in public if PUBLIC_RIDDLES.search(name)} == set(), (
        "the page of earlier names has the word to use"
    )


def _texts() -> Iterator[Path]:
    """What people read beside the decisions and the history: modules, the guide, the runbook, the chart."""
    yield from (path for path in _modules() if not {GENERATOR, "api"} & set(path.relative_to(ROOT).parts))
    for folder in ("docs", "monitoring", "charts/weir", "jobs"):
        for kind in ("*.md", "*.yaml", "*.tpl"):
            yield from sorted((ROOT / folder).rglob(kind))


def test_texts_have_no_dialect() -> None:
    found = [
        f"{name}:{number}"
        for path in _texts()
        if not (name := path.relative_to(ROOT).as_posix()).startswith((*HISTORY, "docs/decisions/"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if DIALECT.search(LINK.sub("", line))
    ]
    assert found == [], "write who, which, again, corrected or stuck"


def test_no_variable_is_a_pronoun() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in (*_modules(), *sorted((ROOT / "bench").rglob("*.py")))
        for line, name in _given_names(ast.parse(path.read_text()))
        if name in PRONOUNS
    ]
    assert found == [], "call it what it is: an entry, a count, a price"


@pytest.mark.parametrize(
    "text",
    [
        "one = 1",
        "many: int = 1",
        "[each for each in rows]",
        "for those in rows: pass",
        "lambda told: told",
        "def price(said): pass",
        "def asked(): pass",
        "(ones := 1)",
        "with rows as many: pass",
        "frame.agg(many=1)",
    ],
)
def test_a_pronoun_is_found(text: str) -> None:
    assert {name for _, name in _given_names(ast.parse(text))} & PRONOUNS


def _given_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names of variables, parameters, keywords and functions, and where they are given."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                yield node.lineno, name
            case ast.keyword(arg=str(name)):
                yield node.lineno, name


def test_nothing_is_validated() -> None:
    texts = [
        path
        for folder in (*PRODUCT, "bench", "docs", "tests", "examples")
        for kind in ("*.py", "*.md", "*.yaml", "*.json")
        for path in sorted((ROOT / folder).rglob(kind))
    ]
    found = [
        f"{name}:{number}"
        for path in texts
        if not (name := path.relative_to(ROOT).as_posix()).startswith(HISTORY)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if JUDGE.search(line)
    ]
    assert found == [], "write what it does: validate, decide, classify or compare"


@pytest.mark.parametrize("name", ["MOST_ROWS", "_MOST_ROWS", "LONGEST_REASON", "AT_ONCE", "_AT_ONCE", "ROWS_AT_ONCE"])
def test_a_limit_of_the_old_kind_is_found(name: str) -> None:
    assert LIMITS.fullmatch(name)


@pytest.mark.parametrize("name", ["MAX_ROWS", "BATCH_ROWS", "MIN_BITS", "MOST", "at_once"])
def test_a_limit_of_the_usual_kind_is_not(name: str) -> None:
    assert LIMITS.fullmatch(name) is None


def test_each_retired_name_is_on_the_page_of_earlier_names() -> None:
    page = (ROOT / "docs/explanation/earlier-names.md").read_text()
    listed = set(re.findall(r"`(\w+)`", page))
    assert MODULES.keys() | NAMES.keys() <= listed

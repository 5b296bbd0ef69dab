"""What the README and the guide show: the CLI parses each command, and each file is read by the code that reads it."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

import weir_client
from api.openapi_schemas import ACCESS_ANSWER
from catalog.file import load_catalog_file
from cli.main import app
from cli.validated_lines import INVALID, VALID, ValidatedLines
from jobs.billing.messages import window_message
from jobs.close.config import CloseConfig
from jobs.config_files import validated
from jobs.queries.invoices import COLUMNS as INVOICE_COLUMNS
from jobs.queries.periods import Window
from jobs.queries.usage import UsageQuery
from jobs.queries.usage_keys import Key
from jobs.stack import BESIDE_JOBS, load_stack_config
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped
from metering.vocabulary import Reason
from tests.pages import HISTORY, PAGES, ROOT, Block, blocks, blocks_of, row_of
from tests.rules.test_messages import WINDOW
from webhooks.event_types import EventType

CLI: Any = typer.main.get_command(app)
USAGE_ERROR: Any = typer.BadParameter.__base__
"""Whatever the parser refuses: Typer gives it no name of its own."""
LANGUAGES = {"sh", "yaml", "json", "sql", "python", "text"}
"""Of a fenced block. A text is what a program prints."""
TARGETS = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
FILE = re.compile(r"(\./)?[\w-]+\.(py|yaml|yml|jsonl|jsonl\.gz|parquet)")
SCHEMA = json.loads((ROOT / "charts/weir/values.schema.json").read_text(encoding="utf-8"))
NOW = "2026-11-21T10:00:00Z"
OF_A_CATALOG = {"plans", "accounts", "prices", "aliases", "limits", "plan_terms", "pools"}
OF_A_CONFIGURATION = {"jobs", *BESIDE_JOBS}


def names(found: list[Block]) -> pytest.MarkDecorator:
    """A test for each block, under the name of its page and its first line."""
    return pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in found])


def commands(text: str) -> list[list[str]]:
    """The words of each command in a block of shell, without comments."""
    found: list[list[str]] = []
    for line in re.sub(r"\$\(date[^)]*\)", NOW, text).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
        lexer.whitespace_split = True
        for is_end, words in groupby(lexer, key=lambda word: set(word) <= set(";|&")):
            found += [] if is_end else [list(words)]
    return found


def problem(words: list[str]) -> str | None:
    """Why a command cannot be run in the repository; None where it can."""
    program, *arguments = words
    if program == "weir":
        return problem_of_weir(arguments)
    if program == "make":
        return None if set(arguments) <= set(TARGETS) else f"no target {arguments}"
    if program in ("export", "source", "echo"):
        return None
    return f"nobody runs {program} in a test: say why before the block, as <!-- not run: WHY -->"


def problem_of_weir(arguments: list[str]) -> str | None:
    """What the CLI's own parser says of these arguments; None when it takes them."""
    try:
        context = CLI.make_context("weir", list(arguments))
        while hasattr(context.command, "commands"):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None if context.command.invoke_without_command else "needs a command"
            name, command, rest = context.command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
    except USAGE_ERROR as refusal:
        return str(refusal.format_message())
    return None


def test_each_code_block_names_its_language() -> None:
    assert {block.name for block in blocks() if block.language not in LANGUAGES} == set()
    assert len(list(blocks())) > 40


def test_blocks_that_are_not_run_have_a_reason() -> None:
    for block in (block for block in blocks() if block.why is not None):
        assert len(str(block.why).split()) > 2, block.name
        if block.language == "sh":
            assert [words for words in commands(block.text) if words[0] != "weir"], f"{block.name}: needs no mark"


@names(blocks_of("sh"))
def test_each_command_of_the_guide_is_tested_or_has_a_reason(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = commands(block.text)
    for word in (word for words in found for word in words if FILE.fullmatch(word)):
        (tmp_path / word).touch()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    checked = [words for words in found if block.why is None or words[0] in ("weir", "make")]
    assert {" ".join(words): said for words in checked if (said := problem(words))} == {}


def test_a_command_that_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert problem(["weir", "usage", "--window", "P1M"]) is None
    assert "no such command" in str(problem(["weir", "invoice"])).lower()
    assert "no such option" in str(problem(["weir", "usage", "--windows", "P1M"])).lower()
    assert "P2M" in str(problem(["weir", "usage", "--window", "P2M"]))
    assert "reason" in str(problem(["weir", "stragglers", "approve", "1"])).lower()
    assert problem(["make", "everything"])
    assert "not run" in str(problem(["kubectl", "get", "pods"]))


@names(blocks_of("yaml"))
def test_each_file_of_yaml_is_read_by_what_reads_it(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "shown.yaml"
    file.write_text(block.text, encoding="utf-8")
    keys = set(yaml.safe_load(block.text))
    if keys <= OF_A_CATALOG:
        catalog = load_catalog_file(file)
        if keys != {"limits"}:
            assert all((catalog.plans, catalog.accounts, catalog.prices))
            assert catalog.unknown_plans(set()) == []
    elif keys <= OF_A_CONFIGURATION:
        of_page = [one.text for one in blocks_of("json") if one.page == block.page and '"$id"' in one.text]
        for name, contract in zip(yaml.safe_load(block.text).get("contracts", ()), of_page, strict=False):
            (tmp_path / name).write_text(contract)
        load_stack_config(file)
    elif keys <= CloseConfig.model_fields.keys():
        validated(CloseConfig, file)
    else:
        jsonschema.validate(yaml.safe_load(block.text), SCHEMA)


def test_the_first_catalog_is_the_one_that_the_guide_shows(tmp_path: Path) -> None:
    shown = [block.text for block in blocks_of("yaml") if block.page == "docs/get-started/laptop.md"]
    file = ROOT / "examples/catalog.yaml"
    load_catalog_file(file)
    assert shown == [file.read_text(encoding="utf-8").partition("\n")[2].rstrip("\n")]


@names(blocks_of("json"))
def test_the_validator_accepts_each_event_and_contract_of_the_guide(block: Block, tmp_path: Path) -> None:
    if block.text.startswith('{"specversion":"1.0","type":"weir.'):
        shown, (_, sent) = json.loads(block.text), window_message(WINDOW)
        assert shown.keys() == json.loads(sent).keys()
        assert shown["data"].keys() == json.loads(sent)["data"].keys()
    elif block.text.startswith('{"specversion"'):
        file = tmp_path / "events.jsonl"
        file.write_text(block.text, encoding="utf-8")
        assert_valid(file)
    elif isinstance(shown := json.loads(block.text), list):
        assert [tuple(row) for row in shown] == [INVOICE_COLUMNS]
    elif shown.keys() == {"data", "next", "frontier"}:
        asked = UsageQuery(window=Window.DAY, group_by=(Key.ACCOUNT, Key.METER), has_details=True)
        assert [list(row) for row in shown["data"]] == [asked.columns]
    elif shown.keys() == {"data", "errors", "meta"}:
        jsonschema.validate(shown, ACCESS_ANSWER)
    elif shown.keys() == {"type", "timestamp", "data"}:
        # tests/webhooks/test_outbox.py compares the rest with what is posted.
        assert shown["type"] in set(EventType)
        assert shown["data"].get("reason") in {None, *Reason}
    else:
        contracts_of([shown], shipped())


def test_each_event_that_a_command_sends_is_valid(tmp_path: Path) -> None:
    sent = [
        (words[0], word)
        for block in blocks_of("sh")
        for words in commands(block.text)
        for word in words
        if word.startswith('{"specversion"')
    ]
    assert {program for program, _ in sent} == {"echo", "curl"}
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(event for _, event in sent))
    assert_valid(file)


def test_the_page_on_clusters_has_the_memory_that_the_chart_gives_to_each_application() -> None:
    values = yaml.safe_load((ROOT / "charts/weir/values.yaml").read_text(encoding="utf-8"))
    defaults, jobs = values["jobDefaults"], values["jobs"]

    def mib(job: str, part: str, heap_mib: int) -> str:
        overhead = jobs[job].get(part, {}).get("memoryOverhead", defaults[part]["memoryOverhead"])
        return f"{heap_mib + int(overhead.removesuffix('m')):,}"

    drivers = [mib(job, "driver", 512) for job in ("ingestion", "sessionization", "joins", "billing")]
    assert f"{', '.join(drivers[:-1])} and {drivers[-1]} MiB" in row_of(
        "get-started/cluster.md", "driver, everything in it"
    )
    executors = {job: mib(job, "executor", int(defaults["executor"]["memory"].removesuffix("m"))) for job in jobs}
    assert executors.pop("sessionization") == executors.pop("analytics") == "1,024"
    assert set(executors.values()) == {"1,280"}
    *first, last = executors
    assert f"1,024 MiB; 1,280 in {', '.join(first)} and {last}" in row_of("get-started/cluster.md", "executor")


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != HISTORY], ids=lambda page: page.name)
def test_no_line_within_a_paragraph_begins_a_list(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    paragraphs = [part.splitlines() for part in text.split("\n\n") if re.match(r"[A-Za-z`*(]", part)]
    assert [line for lines in paragraphs for line in lines[1:] if re.match(r"1[.)] ", line)] == []


OF_THE_CLIENT = [block for block in blocks_of("python") if "weir_client" in block.text]


@names(OF_THE_CLIENT)
def test_each_name_that_is_imported_from_the_client_is_there(block: Block) -> None:
    imports = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imports} == {weir_client.__name__}
    assert {alias.name for node in imports for alias in node.names} <= set(weir_client.__all__)


READS_TABLES = [block for block in blocks_of("python") if "scan_delta" in block.text]
"""`tests/exports/test_usage.py` runs these."""


@names([block for block in blocks_of("python") if block not in (*OF_THE_CLIENT, *READS_TABLES)])
def test_the_script_mends_a_dead_letter(block: Block, tmp_path: Path) -> None:
    script, file = tmp_path / "mend.py", tmp_path / "events.jsonl"
    script.write_text(block.text, encoding="utf-8")
    event = {"specversion": "1.0", "type": "ai.inference.request.v1", "source": "s", "id": "1", "subject": "a"}
    event |= {"time": "2026-11-21T10:00:00Z"}
    letter = {"value": json.dumps(event | {"data": {"request_id": "r", "model": ""}})}
    given = json.dumps(letter) + "\n"
    mended = subprocess.run([sys.executable, script], input=given, capture_output=True, text=True, check=True)
    file.write_text(mended.stdout, encoding="utf-8")
    assert_valid(file)


def assert_valid(file: Path) -> None:
    """Ingestion would accept each line of the file."""
    validated = ValidatedLines(contracts_of([], shipped()))
    rows = list(validated.rows(str(file)))
    assert validated.counts[INVALID] == 0, rows
    assert validated.counts[VALID] == len(rows) > 0

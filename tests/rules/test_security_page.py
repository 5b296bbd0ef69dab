"""The pages on security and promises name files and tests that exist, and say of each item how it stands."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.pages import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
PROMISES = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
ITEMS = 24
FOLDERS = r"(?:charts|docs|jobs|laptop|requirements|tests|\.github)"


def rows() -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| \d", line)
    ]


def is_a_test(named: str) -> bool:
    """Whether `path::function` is in the repository."""
    path, _, function = named.partition("::")
    file = ROOT / path
    return file.is_file() and f"\ndef {function}(" in file.read_text(encoding="utf-8")


def test_the_twenty_four_items_stand_in_order() -> None:
    assert [int(row[0]) for row in rows()] == list(range(1, ITEMS + 1))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_an_item_is_met_by_a_test_or_says_why_not(row: list[str]) -> None:
    _, _, state, kept, tests = row
    assert state in {"met", "in part", "not met"}
    named = re.findall(r"`([^`]+)`", tests)
    assert named
    assert [each for each in named if not is_a_test(each)] == []
    # A sentence, and not only a place.
    assert state == "met" or re.search(r"[a-z]\.( |$)", kept)


@pytest.mark.parametrize("page", [PAGE, PROMISES], ids=["security", "promises"])
def test_each_file_that_a_page_names_exists(page: str) -> None:
    paths = re.findall(rf"`({FOLDERS}/[^`:]+)[`:]", page)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_test_that_is_gone_is_found() -> None:
    assert is_a_test("tests/rules/test_security_page.py::test_a_test_that_is_gone_is_found")
    assert not is_a_test("tests/rules/test_security_page.py::test_that_never_was")
    assert not is_a_test("tests/rules/test_that_never_was.py::test_a")


def test_the_versions_are_those_of_the_project() -> None:
    chart = yaml.safe_load((ROOT / "charts/weir/Chart.yaml").read_text(encoding="utf-8"))
    least = chart["kubeVersion"].removeprefix(">=").removesuffix(".0-0")
    assert f"| Kubernetes | {least} or newer" in PROMISES
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (python,) = re.findall(r'^requires-python = ">=([0-9.]+)"', project, re.MULTILINE)
    assert f"| Python | {python} or newer" in PROMISES
    jars = (ROOT / "laptop/jars.lock").read_text(encoding="utf-8")
    (kafka,) = re.findall(r"^broker org\.apache\.kafka:kafka_2\.13:(\S+)", jars, re.MULTILINE)
    assert f"| {kafka}, which `laptop/jars.lock` pins" in PROMISES
    (delta,) = re.findall(r"^connectors io\.delta:delta-spark_\S+:(\S+) ", jars, re.MULTILINE)
    image = (ROOT / "requirements/image.txt").read_text(encoding="utf-8")
    (spark,) = re.findall(r"^pyspark==(\S+)", image, re.MULTILINE)
    assert f"Spark {spark}, Delta {delta}, Java 17" in PROMISES
    cluster = (ROOT / "tests/cluster/RESULT.md").read_text(encoding="utf-8")
    (tried,) = re.findall(r"Kubernetes v([0-9.]+[0-9])", cluster)
    assert f"{tried}, by [`make e2e-cluster`]" in PROMISES

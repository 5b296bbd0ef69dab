"""One release for all tests of this folder, which run in their order: install, use, break, upgrade, uninstall."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator

import pytest

from tests.cluster.release import Release, progress, tell
from tests.cluster.result import write_page

_releases: list[Release] = []


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest) -> Iterator[Release]:
    """The release that the first test installs. `make e2e-cluster` sets the variables."""
    image, namespace = os.environ.get("WEIR_E2E_IMAGE"), os.environ.get("WEIR_E2E_NAMESPACE")
    if not image or not namespace:
        pytest.skip("needs a cluster with the image in it: run `make e2e-cluster`")
    chosen = Release("e2e", namespace, image)
    _releases.append(chosen)
    server = json.loads(chosen.kubectl("version", "--output", "json"))["serverVersion"]["gitVersion"]
    yield chosen
    if chosen.listed("secrets", "--selector", "owner=helm,name=e2e"):
        tell("uninstalling what a failed test has left")
        chosen.helm("uninstall", chosen.name, "--wait")
    chosen.kubectl("delete", "persistentvolumeclaims", "--all", "--wait=false")
    if not request.session.testsfailed:
        write_page(request.session.testscollected, server, progress)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows every pod and the end of its log."""
    report = yield
    if report.failed and report.when == "call":
        for release in _releases:
            report.sections.append(("the cluster", release.explain()))
    return report

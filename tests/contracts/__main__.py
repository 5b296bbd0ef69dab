"""`python -m tests.contracts` keeps what shipped contracts accept, and the API's document; `--check` only compares."""

from __future__ import annotations

import sys

from tests.contracts import kept_openapi
from tests.contracts.kept import FOLDER, keep, refusals, unkept

HOW = "Producers send what was accepted. Give the change another type ($id), or take it back."
HOW_OF_API = (
    "Clients of the API rely on what it was. Take the change back, or add a path or a member beside the old one. After "
    f"a release that says so in CHANGELOG.md: delete {kept_openapi.FILE.name} and keep the new one."
)


def main(arguments: list[str]) -> int:
    if found := refusals():
        print(*found, HOW, sep="\n", file=sys.stderr)
        return 1
    if found := kept_openapi.breaking():
        print(*found, HOW_OF_API, sep="\n", file=sys.stderr)
        return 1
    if not (changed := [*unkept(), *kept_openapi.unkept()]):
        print("The contracts accept what was kept, and the API answers as it did.")
        return 0
    if "--check" in arguments:
        print(f"{', '.join(changed)}: changed, and not kept yet. Run: python -m tests.contracts", file=sys.stderr)
        return 1
    keep()
    kept_openapi.keep()
    print(f"Kept in {FOLDER.name} and {kept_openapi.FILE.name}: {', '.join(changed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m tests.contracts` keeps what shipped contracts accept; `--check` compares, and changes nothing."""

from __future__ import annotations

import sys

from tests.contracts.kept import FOLDER, keep, refusals, unkept

HOW = "Producers send what was accepted. Give the change another type ($id), or take it back."


def main(arguments: list[str]) -> int:
    if found := refusals():
        print(*found, HOW, sep="\n", file=sys.stderr)
        return 1
    if not (changed := unkept()):
        print("The contracts accept what was kept.")
        return 0
    if "--check" in arguments:
        print(f"{', '.join(changed)}: changed, and not kept yet. Run: python -m tests.contracts", file=sys.stderr)
        return 1
    keep()
    print(f"Kept in {FOLDER.name}: {', '.join(changed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

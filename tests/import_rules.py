"""An import-linter contract: some modules use the standard library and nothing else."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class StandardLibraryOnly(Contract):
    """`modules` (patterns, packages with all in them) import the standard library, themselves and `also_allowed`."""

    modules = fields.SetField(subfield=fields.StringField())
    also_allowed = fields.SetField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002  # the signature is given
        """Kept when no module under the contract imports anything else directly."""
        # import-linter puts the configured values where the class declares its fields.
        patterns = cast("set[str]", self.modules)
        allowed = cast("set[str] | None", self.also_allowed) or set()
        strays = [
            (module, imported)
            for module in sorted(graph.modules)
            for pattern in patterns
            if _within(module, pattern)
            for imported in sorted(graph.find_modules_directly_imported_by(module))
            if not (_within(imported, pattern) or imported.split(".")[0] in sys.stdlib_module_names)
            if not any(_within(imported, other) for other in allowed)
        ]
        return ContractCheck(kept=not strays, metadata={"strays": strays})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name each import that is not allowed."""
        for module, imported in check.metadata["strays"]:
            output.print_error(f"{module} imports {imported}, which is not in the standard library")


def _within(module: str, pattern: str) -> bool:
    return fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*")

"""Whole files in a folder or an object store: a file is written elsewhere, and then appears under its name at once.

So a reader never sees half of one, and a command that is killed leaves the file of the run before.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import obstore
from obstore.exceptions import BaseError

from jobs.runtime.delta.object_store import store_of


class CannotExport(RuntimeError):
    """The destination, or a column, cannot take what there is. The message says what to do; nothing was replaced."""


class Destination(Protocol):
    """Where files are written. Each method raises CannotExport where it cannot be."""

    def replace(self, name: str, written: Path) -> None:
        """`written` becomes the file `name`."""

    def names(self, folder: str) -> list[str]:
        """The files of a folder, also what a killed run has left."""

    def delete(self, name: str) -> None:
        """Delete a file."""

    def space(self) -> Path:
        """A folder for files that are being written."""


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def replace(self, name: str, written: Path) -> None:
        target = self._root / name
        with _reached(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            written.replace(target)

    def names(self, folder: str) -> list[str]:
        with _reached(self._root):
            return [f"{folder}/{path.name}" for path in (self._root / folder).iterdir()]

    def delete(self, name: str) -> None:
        with _reached(self._root):
            (self._root / name).unlink()

    def space(self) -> Path:
        with _reached(self._root):
            # On the same disk, and hidden from readers of the folder.
            self._root.mkdir(parents=True, exist_ok=True)
        return self._root


class _Store:
    def __init__(self, address: str, environment: Mapping[str, str]) -> None:
        self._address = address
        with _reached(address):
            self._store = store_of(address, environment)

    def replace(self, name: str, written: Path) -> None:
        with _reached(self._address):
            obstore.put(self._store, name, written, mode="overwrite")

    def names(self, folder: str) -> list[str]:
        with _reached(self._address):
            return [found["path"] for batch in obstore.list(self._store, folder) for found in batch]

    def delete(self, name: str) -> None:
        with _reached(self._address):
            obstore.delete(self._store, name)

    def space(self) -> Path:
        return Path(tempfile.gettempdir())


def destination_of(address: str, environment: Mapping[str, str]) -> Destination:
    """A folder, or an address such as `s3://bucket/prefix`, whose credentials the `AWS_*` variables have."""
    return _Store(address, environment) if "://" in address else _Folder(Path(address))


@contextmanager
def new_file(destination: Destination, name: str) -> Iterator[Path]:
    """A path to write to; where the block ends without an error, what was written replaces `name`."""
    with tempfile.TemporaryDirectory(prefix=".weir-export-", dir=destination.space()) as folder:
        written = Path(folder) / Path(name).name
        yield written
        destination.replace(name, written)


def put_document(destination: Destination, name: str, content: Mapping[str, Any]) -> None:
    """Replace `name` by a JSON object."""
    with new_file(destination, name) as path:
        path.write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")


def keep_only(destination: Destination, folder: str, kept: Collection[str]) -> None:
    """Delete all files of `folder` but `kept`: those of an earlier run."""
    for name in destination.names(folder):
        if name not in kept:
            destination.delete(name)


@contextmanager
def _reached(place: str | Path) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        line = str(error).strip().partition("\n")[0]
        raise CannotExport(
            f"{place} cannot be written ({line}): name a folder, or an address such as s3://bucket/prefix whose "
            "credentials are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from None

"""YAML and JSON, read so that every number keeps its text from the file, and duplicate keys are refused."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import yaml


def read_as_text(content: str) -> Any:
    """The document in a text: mappings, lists and texts (JSON's true, false and null stay as they are).

    Raises ValueError with what is wrong, to be appended to the file's name.
    """
    try:
        if content.lstrip().startswith("{"):
            return json.loads(content, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=_once_each)
        return yaml.load(content, _TextLoader)  # makes nothing but text, lists and mappings
    except json.JSONDecodeError as problem:
        raise ValueError(f"is not JSON: {problem}") from problem
    except yaml.YAMLError as problem:
        raise ValueError(f"is not YAML: {' '.join(str(problem).split())}") from problem
    except RecursionError as problem:
        raise ValueError("is nested too deeply") from problem


def _once_each(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    keys = [key for key, _ in pairs]
    if doubles := sorted({str(key) for key in keys if keys.count(key) > 1}):
        raise ValueError(f"has {', '.join(doubles)} twice in one object; the second would silently win")
    return dict(pairs)


class _TextLoader(yaml.BaseLoader):
    """Reads every scalar as its source text, and refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        _once_each([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
        return super().construct_mapping(node, deep)

"""Safe reading of untrusted YAML: it refuses text that could explode or that the program could not write again."""

from typing import Any

import yaml

from backend.job.problems import Problem

MAXIMUM_DEPTH = 30
"""Limit on nested collections; a job file needs six."""
LIBYAML_DEEP = "exceeded maximum nesting depth"
"""Error of PyYAML 6.0.4 for 1,000 nested collections: it comes before any event of the text."""
MAXIMUM_INTEGER = 1 << 63

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader, in C if available, without integers that Python refuses to write as text.

    It refuses a duplicate key: PyYAML would silently take the last one.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            keys: set[Any] = set()
            for key, _ in node.value:
                if (name := self.construct_object(key, deep=True)) in keys:
                    raise yaml.MarkedYAMLError(problem=f"the key {name} occurs twice", problem_mark=key.start_mark)
                keys.add(name)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if abs(value) > MAXIMUM_INTEGER:
            raise yaml.MarkedYAMLError(problem="a number of more than 64 bits", problem_mark=node.start_mark)
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def load_yaml(text: str) -> tuple[Any, Problem | None]:
    """Return the data in the text, or a Problem: not_yaml, yaml_deep or yaml_alias.

    Job files need no aliases, and aliases can expand without limit.
    """
    try:
        problem = _refused(text)
        return (None, problem) if problem else (yaml.load(text, Loader=_Loader), None)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        reason = getattr(error, "problem", None) or type(error).__name__
        if reason == LIBYAML_DEEP:
            return None, _too_deep(line)
        return None, Problem(code="not_yaml", values={"line": line, "reason": reason})


def _refused(text: str) -> Problem | None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAXIMUM_DEPTH:
            return _too_deep(event.start_mark.line + 1 if event.start_mark else 1)
        if isinstance(event, yaml.AliasEvent):
            return Problem(code="yaml_alias")
    return None


def _too_deep(line: int) -> Problem:
    return Problem(code="yaml_deep", values={"line": line, "limit": MAXIMUM_DEPTH})

"""Engine files as YAML that every reader takes the same way."""

import re
from collections.abc import Mapping

import yaml

# PyYAML reads 1e3 as a string and OmegaConf, which llamafactory-cli uses, as a number. Strings that begin with a letter
# or a slash and hold nothing but these characters mean themselves to both; all others are quoted.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(mapping: Mapping[str, object]) -> str:
    """The mapping as YAML in its own order, one key a line; PyYAML and OmegaConf read it back equal."""
    return yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))

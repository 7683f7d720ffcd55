"""Engine files as YAML that every reader interprets in the same way."""

import re
from collections.abc import Mapping

import yaml

# PyYAML reads 1e3 as a string; OmegaConf, which llamafactory-cli uses, as a number. Both read a string unchanged if
# it begins with a letter or a slash and has only these characters. All other strings are quoted.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(mapping: Mapping[str, object]) -> str:
    """Return the mapping as YAML in its own order, one key per line; PyYAML and OmegaConf read it back equal."""
    return yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))

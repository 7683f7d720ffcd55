"""What looks like a secret in a job file: in `extra`, in `environment`, and in the options of containers."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from backend.job.cluster import Cluster
from backend.job.mapping import texts_in
from backend.job.problems import Problem
from backend.job.secret_patterns import SHAPES, has_address, is_file, is_secret

SECRET_CODES = ("extra_secret", "environment_secret", "container_secret")
"""Codes of the problems with what looks like a secret."""
# docker and podman join short options without values, as in `-it`, and the last one takes a value: `-ite NAME=VALUE`,
# `-eNAME=VALUE`. apptainer takes several variables with commas between them, and its `-e` takes no value.
_VARIABLE_OPTION = re.compile(r"--env|-[ditPq]*e")
_VARIABLES = re.compile(r"(?:--env[= ]|-[ditPq]*e[= ]?)(.+)")
_WORD = re.compile(r"-{0,2}\w[\w.-]*")
"""The name of a variable or of an option. A text of another form may be the secret itself."""
_REFERENCE = "--secret"
"""This option of podman names a secret of its store, and holds none."""


def looks_secret(name: str, value: Any) -> bool:
    """Return whether a name is typical of a secret, or a value has the shape of a token or an address with a password.

    The path of a file is no secret under a name such as `credentials`.
    """
    texts = list(texts_in(value))
    if any(_has_shape(text) or has_address(text) for text in texts):
        return True
    return is_secret(name) and not (texts and all(is_file(name, text) for text in texts))


def check_containers(cluster: Cluster) -> list[Problem]:
    """Return a problem for each container of the job whose options hold what looks like a secret.

    Options are arguments of the runtime, which other users of a node can see.
    """
    places = [("cluster", cluster.environments)]
    for field, hosts in (("hosts", cluster.hosts), ("spares", cluster.spares)):
        places += [(f"cluster.{field}[{rank}]", host.environments) for rank, host in enumerate(hosts)]
    return [
        Problem(
            code="container_secret",
            field=f"{place}.environments.{name}.container.options",
            values={"name": ", ".join(names)},
        )
        for place, environments in places
        for name, environment in environments.items()
        if environment.container and (names := _secret_options(environment.container.options).values())
    ]


def _secret_options(options: Sequence[str]) -> dict[int, str]:
    """Return the index of each option that holds a secret -> the name of its variable or option."""
    secrets = {}
    for index, (before, option) in enumerate(zip(("", *options), options, strict=False)):
        is_value = not option.startswith("-")
        match = _VARIABLES.fullmatch(option)
        if given := option if is_value and _VARIABLE_OPTION.fullmatch(before) else match[1] if match else "":
            names = _secret_variables(given)
        else:
            names = _secret_values(before if is_value else "", option)
        if names:
            secrets[index] = names[0]
    return secrets


def _secret_variables(given: str) -> list[str]:
    """Return the names of the variables in `NAME=VALUE,NAME=VALUE` that hold a secret."""
    pairs = [(name.strip(), value) for name, equals, value in (item.partition("=") for item in given.split(","))]
    named = [_shown(name) for name, value in pairs if value and looks_secret(name, value)]
    if named or not (has_address(given) or any(map(_has_shape, re.split(r"[=, ]", given)))):
        return named
    name, value = pairs[0]
    return [_shown(name) if value else "options"]


def _secret_values(before: str, option: str) -> list[str]:
    """Return the names in one option that have a secret as value. `before` is the option whose value this may be."""
    if has_address(option) or any(map(_has_shape, option.split("="))):
        return [_shown(option.partition("=")[0]) if option.startswith("-") else "options"]
    pairs = [(before, option)] if before.startswith("-") and "=" not in before else []
    for item in re.split(r"[,\s]", option):
        pairs += pairwise(item.split("="))
    return [_shown(name) for name, value in pairs if value and _names_secret(name) and not is_file(name, value)]


def _shown(name: str) -> str:
    """Return a name for the text of a problem, or `options` if the name may itself be a secret."""
    return name if _WORD.fullmatch(name) and not _has_shape(name.lstrip("-")) else "options"


def _names_secret(option: str) -> bool:
    """Return whether an option, or a key in its value, is named like a secret."""
    return option != _REFERENCE and is_secret(option)


def _has_shape(text: str) -> bool:
    return re.fullmatch(SHAPES, text) is not None


def without_secrets(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's mapping without the secrets that the checks refuse, so that it may be stored.

    A section that is still text, because it cannot be read yet, is removed if it names or shows a secret.
    """
    mapping = dict(job)
    for section in ("environment", "extra"):
        content = mapping.get(section)
        if isinstance(content, Mapping):
            mapping[section] = {name: value for name, value in content.items() if not looks_secret(str(name), value)}
        elif isinstance(content, str) and _text_has_secret(content):
            del mapping[section]
    if isinstance(mapping.get("cluster"), Mapping):
        mapping["cluster"] = copy.deepcopy(mapping["cluster"])
        for container in _containers_in(mapping["cluster"]):
            container["options"] = _without_secret_options(container["options"])
    return mapping


def _text_has_secret(text: str) -> bool:
    """Return whether a text names or shows a secret."""
    return has_address(text) or any(looks_secret(token, token) for token in re.split(r"[^\w-]+", text))


def _containers_in(cluster: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each container with options of a cluster that the user may still be typing."""
    lists = [hosts for field in ("hosts", "spares") if isinstance(hosts := cluster.get(field), list)]
    for owner in (cluster, *(host for hosts in lists for host in hosts)):
        environments = owner.get("environments") if isinstance(owner, Mapping) else None
        for environment in environments.values() if isinstance(environments, Mapping) else ():
            container = environment.get("container") if isinstance(environment, Mapping) else None
            if isinstance(container, dict) and _are_texts(container.get("options")):
                yield container


def _are_texts(options: object) -> bool:
    return isinstance(options, list) and all(isinstance(option, str) for option in options)


def _without_secret_options(options: Sequence[str]) -> list[str]:
    """Return the options without secrets, and without an option whose value is removed."""
    removed = set(_secret_options(options))
    removed |= {index - 1 for index in removed if index and _takes_value(options[index - 1], options[index])}
    return [option for index, option in enumerate(options) if index not in removed]


def _takes_value(before: str, option: str) -> bool:
    return before.startswith("-") and "=" not in before and not option.startswith("-")

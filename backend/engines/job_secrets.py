"""What looks like a secret in a job file: in `extra`, in `environment`, and in the options of containers."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backend.job.cluster import Cluster
from backend.job.mapping import texts_in
from backend.job.problems import Problem

SHAPES = (
    r"(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[baprs]-)[A-Za-z0-9_\-]{8,}|AKIA[0-9A-Z]{16}"
    r"|wandb_v1_[A-Za-z0-9_]{60,}|ms-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
"""Patterns of tokens of well-known services.

W&B's new keys, for wandb 0.22.3 and later: https://docs.rs/crate/redact-secret/latest/source/src/detectors/wandb.rs
(which names W&B's own tests) and
https://docs.wandb.ai/support/models/articles/why-does-my-api-key-fail-with-must-be-40-characters (about 86 characters).
ModelScope: https://docs.gitguardian.com/secrets-detection/secrets-detection-engine/detectors/specifics/modelscope_api_key
(a prefix) and clean-secrets.sh of https://github.com/xianyu110/my-awesome-skills (`ms-` and a UUID).
W&B's older keys look like a git commit (40 hex digits), and no source says that SwanLab's keys have a prefix: neither
has a pattern.
"""
SECRET_CODES = ("extra_secret", "environment_secret", "container_secret")
"""Codes of the problems with what looks like a secret."""
_SECRET = re.compile(
    r"(.*_)?(token|key|webhook|credentials?)|.*(secret|password|passwd|passphrase|api_?key)|.+_pwd", re.IGNORECASE
)
_VARIABLE_OPTIONS = ("-e", "--env")
# docker and podman take `-eNAME=VALUE`, too. apptainer takes several variables with commas between them.
_VARIABLES = re.compile(r"(?:--env[= ]|-e[= ]?)(.+)")


def is_secret(name: str) -> bool:
    """Return whether the name of a key or a variable is typical of a secret."""
    return _SECRET.fullmatch(name) is not None


def looks_secret(name: str, value: Any) -> bool:
    """Return whether a name is typical of a secret, or a value has the shape of a token."""
    return is_secret(name) or any(map(_has_shape, texts_in(value)))


def check_containers(cluster: Cluster) -> list[Problem]:
    """Return a problem for each container of the job whose options hold what looks like a secret.

    Options are arguments of the runtime, which other users of a node can see.
    """
    places = [("cluster", cluster.environments)]
    places += [(f"cluster.hosts[{rank}]", host.environments) for rank, host in enumerate(cluster.hosts)]
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
        match = _VARIABLES.fullmatch(option)
        # apptainer's `-e` takes no value.
        is_value = before in _VARIABLE_OPTIONS and not option.startswith("-")
        given = option if is_value else match[1] if match else ""
        variables = [name.strip() for name, equals, _ in (item.partition("=") for item in given.split(",")) if equals]
        named = [name for name in variables if is_secret(name)]
        if named or any(map(_has_shape, re.split(r"[=, ]" if given else "=", option))):
            word = option.partition("=")[0] if option.startswith("-") else "options"
            secrets[index] = (named or variables or [word])[0]
    return secrets


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
        elif isinstance(content, str) and any(looks_secret(token, token) for token in re.split(r"[^\w-]+", content)):
            del mapping[section]
    if isinstance(mapping.get("cluster"), Mapping):
        mapping["cluster"] = copy.deepcopy(mapping["cluster"])
        for container in _containers_in(mapping["cluster"]):
            container["options"] = _without_secret_options(container["options"])
    return mapping


def _containers_in(cluster: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each container with options of a cluster that the user may still be typing."""
    hosts = cluster.get("hosts")
    for owner in (cluster, *(hosts if isinstance(hosts, list) else ())):
        environments = owner.get("environments") if isinstance(owner, Mapping) else None
        for environment in environments.values() if isinstance(environments, Mapping) else ():
            container = environment.get("container") if isinstance(environment, Mapping) else None
            if isinstance(container, dict) and _are_texts(container.get("options")):
                yield container


def _are_texts(options: object) -> bool:
    return isinstance(options, list) and all(isinstance(option, str) for option in options)


def _without_secret_options(options: Sequence[str]) -> list[str]:
    """Return the options without secrets, and without an `--env` whose variable is removed."""
    removed = set(_secret_options(options))
    removed |= {index - 1 for index in removed if index and options[index - 1] in _VARIABLE_OPTIONS}
    return [option for index, option in enumerate(options) if index not in removed]

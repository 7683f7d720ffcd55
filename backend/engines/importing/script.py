"""The training command of a shell script: LLaMA-Factory's or ms-swift's, with its keys and variables."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from backend.engines.importing.shell import Command, commands
from backend.job.problems import Problem, ProblemsError

Program = Literal["llamafactory", "swift", "megatron"]

_SWIFT_FILE = re.compile(r"(?:.*/)?swift/cli/(_megatron/)?(pt|sft|rlhf)\.py")
_LLAMAFACTORY_FILE = re.compile(r"(?:.*/)?(?:src/train|llamafactory/launcher)\.py|src/train\.py")
_LAUNCHERS = frozenset({"torchrun", "deepspeed", "accelerate", "python", "python3"})
_TRAINING = {"swift": ("pt", "sft", "rlhf"), "megatron": ("pt", "sft", "rlhf"), "llamafactory-cli": ("train",)}
_SCRIPT = re.compile(r"#!.*sh\b")
_COMMAND = re.compile(r"(?m)^[^#\n]*\b(?:llamafactory-cli|swift|megatron|torchrun|accelerate|deepspeed)\s+\S")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A training command."""

    program: Program
    verb: str
    """train, pt, sft or rlhf."""
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    launcher: Mapping[str, Any] = field(default_factory=dict)
    """Options of torchrun or `accelerate launch` before the program, by name with underscores."""


def is_script(text: str) -> bool:
    """Return whether a text is a shell script and not YAML: by its first line, or by a command with continued lines."""
    if _SCRIPT.match(text):
        return True
    return bool(_COMMAND.search(text)) and not re.search(r"(?m)^\s*(model|model_name_or_path|stage)\s*:", text)


def training_command(text: str) -> Launch:
    """Return the only training command of a script. Raises ProblemsError if there is none, or if there are several."""
    launches = [launch for command in commands(text) if (launch := _launch(command)) is not None]
    if not launches:
        raise ProblemsError([Problem(code="import_script_without_training", field="file")])
    if len(launches) > 1:
        verbs = ", ".join(f"{launch.program} {launch.verb}" for launch in launches)
        raise ProblemsError([Problem(code="import_script_of_several", field="file", values={"commands": verbs})])
    return launches[0]


def _launch(command: Command) -> Launch | None:
    words = command.words
    first = words[0].rpartition("/")[2]
    if first in _TRAINING:
        verb = words[1].replace("_", "-") if len(words) > 1 else ""
        program: Program = (
            "llamafactory" if first == "llamafactory-cli" else "swift" if first == "swift" else "megatron"
        )
        if verb not in _TRAINING[first]:
            return None
        return Launch(program=program, verb=verb, arguments=words[2:], variables=command.variables)
    if first not in _LAUNCHERS:
        return None
    for index, word in enumerate(words):
        launcher = keys_of(words[1:index])
        if match := _SWIFT_FILE.fullmatch(word):
            return Launch(program="megatron" if match[1] else "swift", verb=match[2], arguments=words[index + 1 :],
                          variables=command.variables, launcher=launcher)  # fmt: skip
        if _LLAMAFACTORY_FILE.fullmatch(word):
            return Launch(program="llamafactory", verb="train", arguments=words[index + 1 :],
                          variables=command.variables, launcher=launcher)  # fmt: skip
    return None


def keys_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--key value`, `--key=value`, `--key a b` and `--key`, by key. Values are read as YAML."""
    result: dict[str, Any] = {}
    key = ""
    for word in words:
        if word.startswith("--"):
            key, equals, text = word[2:].partition("=")
            key = key.replace("-", "_")
            result[key] = [text] if equals else []
        elif key:
            result[key].append(word)
    return {key: _value(texts) for key, texts in result.items()}


def overrides(words: Iterable[str]) -> dict[str, Any]:
    """Return the values of `key=value`, which llamafactory-cli takes after the name of a YAML file."""
    pairs = (word.partition("=") for word in words if "=" in word and not word.startswith("-"))
    return {key: scalar(text) for key, _, text in pairs}


def _value(texts: Sequence[str]) -> Any:
    if not texts:
        return True
    values = [scalar(text) for text in texts]
    return values[0] if len(values) == 1 else values


def scalar(text: str) -> Any:
    """Return a word as the number, switch or text that YAML reads. Mappings, lists and dates stay text."""
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    return value if isinstance(value, bool | int | float) else text

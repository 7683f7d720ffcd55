"""The file of an import: what it is, and the configuration in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from backend.engines.importing.accelerate import machines_of, sharding_of, swift_sharding_of
from backend.engines.importing.choose import SECOND_TRAINER, ReadFile
from backend.engines.importing.script import Launch, is_script, keys_of, overrides, training_command
from backend.engines.importing.shell import is_open
from backend.engines.known_keys import programs
from backend.job.mapping import load_mapping, texts_in
from backend.job.problems import Problem, ProblemsError

Kind = Literal["job", "llamafactory", "swift"]

_MEGATRON_OF_SWIFT = frozenset({"micro_batch_size", "global_batch_size", "train_iters", "lr", "mcore_model"})
"""Keys of `megatron sft` that `swift sft` does not have under this name."""
_OF_SWIFT = frozenset({"tuner_type", "train_type", "rlhf_type", "torch_dtype", "target_modules", "split_dataset_ratio"})
"""Keys of ms-swift that LLaMA-Factory's configurations do not have."""
_OF_LLAMAFACTORY = frozenset({"model_name_or_path", "finetuning_type", "do_train"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedFile:
    """A configuration to import."""

    kind: Kind
    config: Mapping[str, Any]
    """Keys of the program, and environment variables beside them."""
    command: str = ""
    """ms-swift: `megatron sft`, `swift rlhf`, ...; empty if only the keys are known (a YAML file)."""
    machines: Mapping[str, int] = field(default_factory=dict)
    """`nodes` and `gpus_per_node`, as far as the file gives them."""
    open_keys: frozenset[str] = frozenset()
    """Keys of a script whose values depend on variables or commands outside of it."""


def read_source(
    text: str, read_file: ReadFile | None = None, accelerate: Mapping[str, Any] | None = None
) -> ImportedFile:
    """Return what a text configures: a job file, a configuration of LLaMA-Factory or ms-swift, or a script of one.

    `accelerate` is the mapping of the file that `accelerate launch --config_file` gets. Raises ProblemsError if the
    text cannot be read, or if a file that it names is not available.
    """
    source = _of_script(training_command(text), read_file) if is_script(text) else _of_mapping(text)
    if accelerate is None:
        return source
    if source.kind == "job" or (source.kind == "swift" and is_megatron_of_swift(source)):
        raise ProblemsError([Problem(code="import_accelerate_alone", field="--accelerate")])
    is_swift = source.kind == "swift"
    sharding = swift_sharding_of(accelerate, source.config) if is_swift else sharding_of(accelerate)
    config = {**source.config, **sharding}
    return replace(source, config=config, machines={**source.machines, **machines_of(accelerate)})


def _of_mapping(text: str) -> ImportedFile:
    mapping, problem = load_mapping(text)
    if problem:
        raise ProblemsError([problem])
    config = {str(key): value for key, value in mapping.items()}
    if is_job(config):
        return ImportedFile(kind="job", config=mapping)
    if not config.keys() & (_OF_LLAMAFACTORY | SECOND_TRAINER) and config.keys() & (_OF_SWIFT | _MEGATRON_OF_SWIFT):
        variables = config.pop("ENV", None)
        config |= {str(name): value for name, value in variables.items()} if isinstance(variables, Mapping) else {}
        return ImportedFile(kind="swift", config=config, machines=_machines(config, {}))
    return ImportedFile(kind="llamafactory", config=config)


def is_job(mapping: Mapping[str, Any]) -> bool:
    """Return whether a mapping is a job file of Megaboard."""
    return "cluster" in mapping or "version" in mapping


def _of_script(launch: Launch, read_file: ReadFile | None) -> ImportedFile:
    machines = _machines(launch.variables, launch.launcher)
    words = launch.arguments
    named = words[0] if words and not words[0].startswith("-") else None
    config = dict(_named_file(named, read_file)) if named else keys_of(words)
    if named:
        config |= overrides(words[1:]) if launch.program == "llamafactory" else keys_of(words[1:])
    config |= launch.variables
    open_keys = frozenset(key for key, value in config.items() if any(is_open(text) for text in texts_in(value)))
    file = launch.launcher.get("config_file")
    settings = _named_file(str(file), read_file) if file else {}
    machines = {**machines_of(settings), **machines}
    if launch.program != "llamafactory":
        variables = config.pop("ENV", None)
        config |= dict(variables) if isinstance(variables, Mapping) else {}
        config |= swift_sharding_of(settings, config) if settings else {}
        command = f"{launch.program} {launch.verb}"
        return ImportedFile(kind="swift", config=config, command=command, machines=machines, open_keys=open_keys)
    config |= sharding_of(settings) if settings else {}
    return ImportedFile(kind="llamafactory", config=config, machines=machines, open_keys=open_keys)


def _named_file(name: str, read_file: ReadFile | None) -> Mapping[str, Any]:
    content = read_file(name) if read_file else None
    if content is None:
        raise ProblemsError([Problem(code="import_file_missing", field="file", values={"path": name})])
    return content


def _machines(variables: Mapping[str, Any], launcher: Mapping[str, Any]) -> dict[str, int]:
    """Return the machines that the variables of ms-swift and LLaMA-Factory, or the options of torchrun, ask for."""
    devices = str(variables.get("CUDA_VISIBLE_DEVICES", "")).split(",")
    number = launcher.get("nproc_per_node") or launcher.get("num_processes") or variables.get("NPROC_PER_NODE")
    candidates = {
        "nodes": launcher.get("nnodes") or launcher.get("num_machines") or variables.get("NNODES"),
        "gpus_per_node": number or (len(devices) if devices != [""] else None),
    }
    numbers = {name: _whole(value) for name, value in candidates.items()}
    return {name: value for name, value in numbers.items() if value is not None}


def _whole(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and 0 < int(text) <= 1024 else None


def is_megatron_of_swift(source: ImportedFile) -> bool:
    """Return whether ms-swift's Megatron trains: by the command, or by keys that only it has."""
    if source.command:
        return source.command.startswith("megatron")
    megatron = programs()["mcore_adapter"].keys.keys() & programs()["swift"].keys.keys()
    return bool(source.config.keys() & (_MEGATRON_OF_SWIFT | megatron))

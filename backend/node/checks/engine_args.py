"""Runs on a node, read from standard input: what the installed engine's own argument parser says. It changes nothing.

    python - parse|keys JSON --token T

Standard library, and the engine itself. Prints one line, `T{json}`. JSON holds `engine` (llamafactory or swift),
`environment` (the variables that the ranks start with), and for `parse` the `files` that were rendered.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import json
import os
import sys
import tempfile
import types
import typing
from typing import Any

CONFIG = "config.yaml"
LONGEST = 2000
"""Characters of an error that are told."""
PLAIN = (bool, int, float, str, type(None))


def parse(wanted: dict[str, Any]) -> dict[str, Any]:
    """Whether the engine takes its configuration; its own words where it does not."""
    alone()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in wanted["files"].items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        # Where the ranks start: what the configuration names stands beside it.
        os.chdir(folder)
        try:
            PARSERS[wanted["engine"]]()
        except Exception as error:
            return {"error": type(error).__name__, "message": str(error)[:LONGEST]}
        finally:
            os.chdir("/")
    return {"error": None, "message": "", "programs": programs_of(wanted["engine"])}


def programs_of(engine: str) -> dict[str, Any]:
    """`keys`, to be compared with those that were known when the files were written; empty for a strange version."""
    try:
        return KEYS[engine]()
    except (ImportError, AttributeError, TypeError):
        return {}


def alone() -> None:
    """A gang of one rank: parsers look at RANK and WORLD_SIZE, and some of them start a process group."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    # Torch's store takes any free port then. One chosen here could be taken while the engine is being imported.
    os.environ.update({**place, "MASTER_PORT": "0"})


def parse_llamafactory() -> None:
    """Raises what LLaMA-Factory says against config.yaml."""
    import yaml
    from llamafactory import hparams

    with open(CONFIG, encoding="utf-8") as file:
        config = yaml.safe_load(file)
    if config.get("deepspeed"):
        # accelerate then does not start DeepSpeed, which would build parts of itself now, for minutes.
        config["use_cpu"] = True
    load_deepspeed(hparams.get_train_args(config)[2])
    # Looked up only once the tokenizer is loaded, on every rank.
    template = config.get("template")
    from llamafactory.data.template import TEMPLATES

    if template is not None and template not in TEMPLATES:
        raise ValueError(f"Template {template} does not exist.")


def parse_swift() -> None:
    """Raises what ms-swift's own argument class says against config.yaml."""
    from swift.cli.main import parse_yaml_args

    arguments = [CONFIG]
    parse_yaml_args(arguments)
    owner = swift_class(os.environ["MEGABOARD_TRAINER"].partition("-")[2])
    from swift.utils import parse_args

    without_gang()
    _, unknown = parse_args(owner, arguments)
    if unknown:
        raise ValueError(f"remaining_argv: {unknown}")


def swift_class(command: str) -> Any:
    """The argument class of `megatron sft`, `pt` or `rlhf`."""
    from swift.megatron import arguments

    names = {"sft": "MegatronSftArguments", "pt": "MegatronPretrainArguments", "rlhf": "MegatronRLHFArguments"}
    return getattr(arguments, names[command])


def without_gang() -> None:
    """Its arguments start the process groups of the whole plan and make the output folder: neither is wanted here."""
    from swift.megatron.arguments import megatron_args, sft_args

    def stand_in(args: Any) -> None:
        args.world_size, args.rank = int(os.environ["MEGABOARD_WORLD_SIZE"]), 0

    sft_args.MegatronSftArguments._init_output_dir = lambda self: None
    megatron_args.initialize_megatron = stand_in


def load_deepspeed(training: Any) -> None:
    """Raises what DeepSpeed's own loader says against its file, once the trainer has filled in what is `auto`."""
    if not getattr(training, "deepspeed", None):
        return
    from deepspeed.runtime.config import DeepSpeedConfig

    # Sizes that follow from the model: any serves.
    model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=1024))
    training.hf_deepspeed_config.trainer_config_finalize(training, model, 1)
    DeepSpeedConfig(training.hf_deepspeed_config.config)


PARSERS = {"llamafactory": parse_llamafactory, "swift": parse_swift}


def keys(wanted: dict[str, Any]) -> dict[str, Any]:
    """The keys that the installed engine takes, by the program that defines them: type, default, choices."""
    alone()
    return KEYS[wanted["engine"]]()


def keys_of_swift() -> dict[str, Any]:
    found = {name: key for command in ("sft", "pt", "rlhf") for name, key in fields_of(swift_class(command)).items()}
    return {"swift": {"version": version_of("ms-swift"), "keys": dict(sorted(found.items()))}}


def keys_of_llamafactory() -> dict[str, Any]:
    import transformers
    from llamafactory import hparams
    from llamafactory.hparams.training_args import TrainingArguments

    own = (hparams.ModelArguments, hparams.DataArguments, hparams.FinetuningArguments, hparams.GeneratingArguments)
    parts = {"transformers": fields_of(transformers.TrainingArguments), "llamafactory": fields_of(*own)}
    versions = {"transformers": transformers.__version__, "llamafactory": importlib.metadata.version("llamafactory")}
    if os.environ.get("USE_MCA") == "1":
        import mcore_adapter.training_args as mca

        parts["mcore_adapter"] = fields_of(mca.MegatronArguments)
        versions["mcore_adapter"] = version_of("mcore-adapter")
    else:
        trainer = fields_of(TrainingArguments)
        parts["llamafactory_trainer"] = {n: f for n, f in trainer.items() if n not in parts["transformers"]}
        versions["llamafactory_trainer"] = versions["llamafactory"]
    return {part: {"version": versions[part], "keys": dict(sorted(found.items()))} for part, found in parts.items()}


KEYS = {"llamafactory": keys_of_llamafactory, "swift": keys_of_swift}


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def fields_of(*owners: Any) -> dict[str, Any]:
    """Name -> {type, default, choices} of every argument of dataclasses."""
    found = {}
    for owner in owners:
        hints = typing.get_type_hints(owner)
        for field in dataclasses.fields(owner):
            if field.init:
                found[field.name] = describe(hints[field.name], field)
    return found


def describe(hint: Any, field: Any) -> dict[str, Any]:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    default = default.value if isinstance(default, enum.Enum) else default
    said = {"type": name_of(hint), "default": default if isinstance(default, PLAIN) else plain(default)}
    choices = [choice for one in typing.get_args(hint) or (hint,) for choice in choices_of(one)] or choices_of(hint)
    return {**said, "choices": choices} if choices else said


def plain(value: Any) -> Any:
    """A default that JSON can say; a required argument has none."""
    return value if isinstance(value, (list, dict)) else None


def choices_of(hint: Any) -> list[Any]:
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [one.value for one in hint]
    return []


def name_of(hint: Any) -> str:
    """`int`, `float | None`, ...: what a value is, in a few letters."""
    union = getattr(types, "UnionType", typing.Union)
    if typing.get_origin(hint) in (typing.Union, union):
        return " | ".join(dict.fromkeys(name_of(one) for one in typing.get_args(hint)))
    if hint is type(None):
        return "None"
    if choices := choices_of(hint):
        return type(choices[0]).__name__
    return getattr(typing.get_origin(hint) or hint, "__name__", "str")


ACTIONS = {"parse": parse, "keys": keys}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    said = json.loads(arguments)
    # Before the engine is imported: some of them choose what they import.
    os.environ.update(said["environment"])
    print("\n" + token + json.dumps(ACTIONS[action](said), default=str), flush=True)

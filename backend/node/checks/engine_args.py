"""Program on a node, read from standard input. It runs the installed engine's own argument parser and changes nothing.

    python - parse|keys JSON --token T

It prints one line, `T{json}`. JSON has `engine` (llamafactory or swift), `environment` (the variables of the ranks),
and for `parse` the rendered `files`. The program needs the standard library and the engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import tempfile
import types
import typing
from typing import Any

CONFIG = "config.yaml"
LONGEST = 2000
"""Most characters of an error message."""
COMPILED = ("flash_attn", "transformer_engine.pytorch", "torchvision", "torchaudio", "bitsandbytes")
"""Packages with compiled parts. transformers imports most of them where they are installed, even if a run does not use
them."""
UNRECOGNIZED = re.compile(r"model type `([^`]+)` but Transformers does not recognize this architecture")
"""models/auto/configuration_auto.py of transformers: AutoConfig.from_pretrained."""
PLAIN = (bool, int, float, str, list, dict, type(None))
"""Types of a default that JSON can hold."""


def parse(request: dict[str, Any]) -> dict[str, Any]:
    """Return whether the engine accepts its configuration, or its error message."""
    set_one_rank()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in request["files"].items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        # Ranks start in the folder of the files, because the configuration has relative names.
        os.chdir(folder)
        try:
            PARSERS[request["engine"]]()
        except Exception as error:
            return {**error_of(error), **faults()}
        finally:
            os.chdir("/")
    problems = {"generation": generation_fault(request["files"]), **faults()}
    if request["engine"] == "swift":
        problems["architecture"] = architecture_fault(request["files"])
    problems = {name: value for name, value in problems.items() if value}
    return {"error": None, "message": "", "programs": programs_of(request["engine"]), **problems}


def error_of(error: Exception) -> dict[str, str]:
    """Return the name and the message of an error. ms-swift passes on that of transformers about an architecture."""
    message = str(error)
    unknown = UNRECOGNIZED.search(message)
    if unknown:
        import transformers

        return {"error": ArchitectureUnknownError.__name__, "message": f"{transformers.__version__} {unknown.group(1)}"}
    return {"error": type(error).__name__, "message": message[:LONGEST]}


def generation_fault(files: dict[str, str]) -> str:
    """Return why transformers cannot write the model's generation_config.json beside a checkpoint; empty if it can.

    LLaMA-Factory turns sampling on where the file has values for it (model/patcher.py patch_model). Adapters and
    Megatron's checkpoints have no such file.
    """
    import yaml

    config = yaml.safe_load(files.get(CONFIG, "")) or {}
    folder = config.get("model_name_or_path") or ""
    is_file = os.path.isfile(os.path.join(folder, "generation_config.json"))
    if not is_file or config.get("finetuning_type") == "lora" or os.environ.get("USE_MCA") == "1":
        return ""
    from transformers import GenerationConfig

    with tempfile.TemporaryDirectory() as target:
        try:
            generation = GenerationConfig.from_pretrained(folder)
            values = (getattr(generation, name, None) for name in ("temperature", "top_p", "typical_p"))
            if not generation.do_sample and any(value not in (None, 1.0) for value in values):
                generation.do_sample = True
            generation.save_pretrained(target)
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:LONGEST]
    return ""


def architecture_fault(files: dict[str, str]) -> str:
    """Return the version of transformers and the model_type that it does not know; empty if it knows it.

    ms-swift's parser accepts such a model. It loads qwen3_asr with the package qwen_asr, which registers the type when
    it is imported (models/qwen.py of 4.6.0).
    """
    import yaml

    folder = (yaml.safe_load(files.get(CONFIG, "")) or {}).get("model") or ""
    with contextlib.suppress(ImportError):
        importlib.import_module("qwen_asr")
    try:
        # The parser has found a class if config.json names none.
        with contextlib.suppress(ClassMissingError):
            require_architecture(folder, may_run_code=True)
    except ArchitectureUnknownError as error:
        return str(error)
    return ""


def faults() -> dict[str, Any]:
    """Return what is wrong with the environment itself: `packages`, `gpu`. Empty if nothing is."""
    problems = {"packages": broken_packages(), "gpu": gpu_without_code()}
    return {name: value for name, value in problems.items() if value}


def broken_packages() -> dict[str, str]:
    """Return package -> its error, for the installed compiled packages that cannot be imported."""
    broken = {}
    for name in COMPILED:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            broken[name.partition(".")[0]] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return broken


def gpu_without_code() -> str:
    """Return the first GPU for which torch has no code, with what torch has. Empty if there is none."""
    try:
        import torch

        if not torch.cuda.is_available():
            return ""
        known = torch.cuda.get_arch_list()
        own = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    except (ImportError, AttributeError, OSError, RuntimeError, AssertionError):
        return ""
    lacking = next((capability for capability in own if not has_code(capability, known)), None)
    return f"sm_{lacking[0]}{lacking[1]}: {' '.join(known)}"[:300] if lacking and known else ""


def has_code(capability: tuple[int, int], known: list[str]) -> bool:
    """Return whether a build runs on a GPU: with code of its major version, or with older PTX.

    `known` is torch's list, such as sm_86 and compute_90
    (https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/index.html#gpu-feature-list).
    """
    for kind, _, digits in (name.partition("_") for name in known):
        number = digits.rstrip("af")
        if not number.isdigit():
            continue
        major, minor = divmod(int(number), 10)
        if kind == "compute" and (major, minor) <= capability:
            return True
        if kind == "sm" and major == capability[0] and minor <= capability[1]:
            return True
    return False


def programs_of(engine: str) -> dict[str, Any]:
    """Return `keys`, for comparison with the known keys. Empty for an unknown version."""
    try:
        return KEYS[engine]()
    except (ImportError, AttributeError, TypeError):
        return {}


def set_one_rank() -> None:
    """Set the variables of a gang of one rank. Parsers read them, and some parsers start a process group."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    # Port 0: torch's store takes a free port. A port chosen here could be taken during the engine's import.
    os.environ.update({**variables, "MASTER_PORT": "0"})


def parse_llamafactory() -> None:
    """Raise LLaMA-Factory's errors about config.yaml."""
    import yaml
    from llamafactory import hparams

    with open(CONFIG, encoding="utf-8") as file:
        config = yaml.safe_load(file)
    if config.get("deepspeed"):
        # On a GPU accelerate would start DeepSpeed, which builds its extensions for minutes.
        config["use_cpu"] = True
    load_deepspeed(hparams.get_train_args(config)[2])
    # LLaMA-Factory itself checks the template only after it has loaded the tokenizer, on every rank.
    template = config.get("template")
    from llamafactory.data.template import TEMPLATES

    if template is not None and template not in TEMPLATES:
        raise ValueError(f"Template {template} does not exist.")
    if os.environ.get("USE_MCA") != "1":
        require_architecture(config.get("model_name_or_path") or "", bool(config.get("trust_remote_code")))


class ArchitectureUnknownError(ValueError):
    """The installed transformers has no class for the model. The message is its version and the model_type."""


class ClassMissingError(ValueError):
    """The model's config.json names no class."""


class CodeNotAllowedError(ValueError):
    """The model's class is in a Python file of its folder, which the message names. The job does not allow it."""


def require_architecture(folder: str, may_run_code: bool = False) -> None:
    """Raise ValueError if transformers will not find the model's class, before every rank does.

    A model may bring its own code (transformers 5.6.0 models/auto/configuration_auto.py AutoConfig.from_pretrained).
    """
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        name, own_code = config.get("model_type"), (config.get("auto_map") or {}).get("AutoConfig")
    except (OSError, ValueError, AttributeError):
        return  # Another check finds this.
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if isinstance(name, str) and name in CONFIG_MAPPING:
        return
    if own_code:
        if not may_run_code:
            raise CodeNotAllowedError(str(own_code))
    elif isinstance(name, str):
        raise ArchitectureUnknownError(f"{transformers.__version__} {name}")
    elif int(transformers.__version__.partition(".")[0]) > 4:
        # Earlier versions look for a known name in the folder's path.
        raise ClassMissingError


def parse_swift() -> Any:
    """Return ms-swift's arguments of config.yaml, or raise the errors of their class."""
    from swift.cli.main import parse_yaml_args

    arguments = [CONFIG]
    parse_yaml_args(arguments)
    trainer, _, command = os.environ["MEGABOARD_TRAINER"].partition("-")
    from swift.utils import parse_args

    if trainer == "swift":
        owner = swift_class(command)
        prevent_process_groups()
    else:
        owner = swift_trainer_class(command)
        prevent_results()
        if "--deepspeed" in arguments:
            # On a GPU accelerate would start DeepSpeed, which builds its extensions for minutes.
            arguments += ["--use_cpu", "true"]
    parsed, unknown = parse_args(owner, arguments)
    if unknown:
        raise ValueError(f"remaining_argv: {unknown}")
    return parsed


def swift_trainer_class(command: str) -> Any:
    """Return the argument class of `swift sft`, `pt` or `rlhf`."""
    from swift import arguments

    return getattr(arguments, {"sft": "SftArguments", "pt": "PretrainArguments", "rlhf": "RLHFArguments"}[command])


def prevent_results() -> None:
    """Prevent ms-swift's arguments from creating the output folder."""
    from swift.arguments import SftArguments

    SftArguments._add_version = lambda self: None


def swift_class(command: str) -> Any:
    """Return the argument class of `megatron sft`, `pt` or `rlhf`."""
    from swift.megatron import arguments

    names = {"sft": "MegatronSftArguments", "pt": "MegatronPretrainArguments", "rlhf": "MegatronRLHFArguments"}
    return getattr(arguments, names[command])


def prevent_process_groups() -> None:
    """Prevent ms-swift's arguments from starting process groups and creating the output folder."""
    from swift.megatron.arguments import megatron_args, sft_args

    def set_sizes(args: Any) -> None:
        args.world_size, args.rank = int(os.environ["MEGABOARD_WORLD_SIZE"]), 0

    sft_args.MegatronSftArguments._init_output_dir = lambda self: None
    megatron_args.initialize_megatron = set_sizes


def load_deepspeed(training: Any) -> None:
    """Raise the errors of DeepSpeed's own loader about its file, after the trainer has replaced `auto`."""
    if not getattr(training, "deepspeed", None):
        return
    from deepspeed.runtime.config import DeepSpeedConfig

    # The loader needs the sizes of some model.
    model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=1024))
    training.hf_deepspeed_config.trainer_config_finalize(training, model, 1)
    DeepSpeedConfig(training.hf_deepspeed_config.config)


PARSERS = {"llamafactory": parse_llamafactory, "swift": parse_swift}


def keys(request: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that the installed engine takes, by program: type, default, choices."""
    set_one_rank()
    return KEYS[request["engine"]]()


def keys_of_swift() -> dict[str, Any]:
    """Return the keys of ms-swift's Megatron (`swift`) or of its Hugging Face trainers (`swift_trainer`)."""
    program = os.environ.get("MEGABOARD_TRAINER", "swift").partition("-")[0]
    class_of = swift_class if program == "swift" else swift_trainer_class
    fields = {name: key for command in ("sft", "pt", "rlhf") for name, key in fields_of(class_of(command)).items()}
    return {program: {"version": version_of("ms-swift"), "keys": dict(sorted(fields.items()))}}


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
    return {part: {"version": versions[part], "keys": dict(sorted(fields.items()))} for part, fields in parts.items()}


KEYS = {"llamafactory": keys_of_llamafactory, "swift": keys_of_swift}


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def fields_of(*owners: Any) -> dict[str, Any]:
    """Return the type, default and choices of every field of dataclasses, by name."""
    fields = {}
    for owner in owners:
        hints = typing.get_type_hints(owner)
        for field in dataclasses.fields(owner):
            if field.init:
                fields[field.name] = describe(hints[field.name], field)
    return fields


def describe(hint: Any, field: Any) -> dict[str, Any]:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    default = default.value if isinstance(default, enum.Enum) else default
    # A required argument has no default.
    key = {"type": name_of(hint), "default": default if isinstance(default, PLAIN) else None}
    choices = [choice for part in typing.get_args(hint) or (hint,) for choice in choices_of(part)] or choices_of(hint)
    return {**key, "choices": choices} if choices else key


def choices_of(hint: Any) -> list[Any]:
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [member.value for member in hint]
    return []


def name_of(hint: Any) -> str:
    """Return a short name of a type: `int`, `float | None`."""
    union = getattr(types, "UnionType", typing.Union)
    if typing.get_origin(hint) in (typing.Union, union):
        return " | ".join(dict.fromkeys(name_of(part) for part in typing.get_args(hint)))
    if hint is type(None):
        return "None"
    if choices := choices_of(hint):
        return type(choices[0]).__name__
    return getattr(typing.get_origin(hint) or hint, "__name__", "str")


ACTIONS = {"parse": parse, "keys": keys}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    request = json.loads(arguments)
    # Before the import of the engine, because the variables select the modules that some engines import.
    os.environ.update(request["environment"])
    print("\n" + token + json.dumps(ACTIONS[action](request), default=str), flush=True)

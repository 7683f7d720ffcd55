"""Program on a node, read from standard input. It runs the installed engine's own argument parser and changes nothing.

    python - parse|keys JSON --token T

It prints one line, `T{json}`. JSON has `engine` (llamafactory or swift), `environment` (the variables of the ranks),
and for `parse` the rendered `files`. The program needs the standard library and the engine.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
import types
from typing import Any

from .engine_keys import KEYS, programs_of
from .environment_faults import faults
from .model_class import UNRECOGNIZED, ArchitectureUnknownError, ClassMissingError, require_architecture
from .swift_arguments import prevent_process_groups, prevent_results, swift_class, swift_trainer_class

CONFIG = "config.yaml"
LONGEST = 2000
"""Most characters of an error message."""


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


ACTIONS = {"parse": parse, "keys": keys}

if __name__ == "__main__":
    action, arguments, _, token = sys.argv[1:]
    request = json.loads(arguments)
    # Before the import of the engine, because the variables select the modules that some engines import.
    os.environ.update(request["environment"])
    print("\n" + token + json.dumps(ACTIONS[action](request), default=str), flush=True)

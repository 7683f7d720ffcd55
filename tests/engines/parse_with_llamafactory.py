"""Run by a node's python: LLaMA-Factory's own parser over many configurations, in one process as importing it is slow.

stdin: JSON, case -> {files, environment} as rendered. stdout, last line: JSON, case -> {error, warnings, arguments},
and where ranks share the model {zero} or {fsdp}: what DeepSpeed or accelerate reads.
"""

import dataclasses
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import yaml
from accelerate import FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from llamafactory import hparams
from omegaconf import OmegaConf

# What transformers looks up in the model for sizes that are "auto".
MODEL = SimpleNamespace(config=SimpleNamespace(hidden_size=1024))


class Warnings(logging.Handler):
    """Collects what the engine has to say about a configuration."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def parse(files, environment):
    """In a folder with the files, as the ranks start, and with the variables that say a plan."""
    before = dict(os.environ)
    os.environ.update({name: text for name, text in environment.items() if name.startswith(("ACCELERATE_", "FSDP_"))})
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        os.chdir(folder)
        try:
            return parse_here(files["config.yaml"])
        finally:
            os.chdir("/")
            os.environ.clear()
            os.environ.update(before)
            # Otherwise the first case decides for all how its ranks share the model.
            AcceleratorState._reset_state(reset_partial_state=True)


def parse_here(text):
    heard = Warnings()
    loggers = [logging.getLogger(name) for name in ("transformers", "llamafactory", "mcore_adapter")]
    for logger in loggers:
        logger.addHandler(heard)
    try:
        config = yaml.safe_load(text)
        if OmegaConf.to_container(OmegaConf.create(text)) != config:
            return {"error": "PyYAML and OmegaConf differ"}
        # This machine has no GPU: bf16 is refused on it unless it is told that this is meant.
        parsed = hparams.get_train_args({**config, "use_cpu": True})
        shared = read_sharing(parsed[2])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        for logger in loggers:
            logger.removeHandler(heard)
    arguments = {
        key: value
        for part in parsed
        for key, value in vars(part).items()
        if isinstance(value, bool | int | float | str | list | dict | None)
    }
    return {"error": None, "warnings": heard.lines, "arguments": arguments, **shared}


def read_sharing(training):
    """What DeepSpeed's own loader and accelerate make of the files and variables."""
    if training.deepspeed:
        from deepspeed.runtime.config import DeepSpeedConfig

        training.hf_deepspeed_config.trainer_config_finalize(training, MODEL, num_training_steps=10)
        zero = DeepSpeedConfig(training.hf_deepspeed_config.config).zero_config
        return {"zero": json.loads(zero.model_dump_json())}
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        # This machine has no GPU, whose number is all that accelerate asks for here.
        with mock.patch(f"{FullyShardedDataParallelPlugin.__module__}.is_cuda_available", return_value=True):
            return {"fsdp": read_fsdp()}
    return {}


@mock.patch("torch.cuda.current_device", return_value=0)
def read_fsdp(device):
    plugin = FullyShardedDataParallelPlugin()
    return {field.name: str(getattr(plugin, field.name)) for field in dataclasses.fields(plugin)}


results = {case: parse(**rendered) for case, rendered in json.load(sys.stdin).items()}
print("\n" + json.dumps(results, default=str))

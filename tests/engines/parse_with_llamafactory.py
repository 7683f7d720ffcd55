"""Run LLaMA-Factory's own parser over many configurations in one process, because its import is slow.

A node's python runs this file. stdin: JSON, case -> {files, environment} as rendered. stdout, last line: JSON, case ->
{error, warnings, arguments}. With sharding also {zero} or {fsdp}: what DeepSpeed or accelerate reads.
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

# The sizes of the model that transformers looks up for "auto".
MODEL = SimpleNamespace(config=SimpleNamespace(hidden_size=1024))


class Warnings(logging.Handler):
    """Collector of the engine's messages about a configuration."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def parse(files, environment):
    """Parse a case in a folder with its files, as the ranks do, with the variables of the plan."""
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
            # Otherwise the first case would decide the sharding of all cases.
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
        # This machine has no GPU, so bf16 is refused by default.
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
    """Return how DeepSpeed's own loader and accelerate read the files and variables."""
    if training.deepspeed:
        from deepspeed.runtime.config import DeepSpeedConfig

        training.hf_deepspeed_config.trainer_config_finalize(training, MODEL, num_training_steps=10)
        zero = DeepSpeedConfig(training.hf_deepspeed_config.config).zero_config
        return {"zero": json.loads(zero.model_dump_json())}
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        # This machine has no GPU; accelerate reads only their number here.
        with mock.patch(f"{FullyShardedDataParallelPlugin.__module__}.is_cuda_available", return_value=True):
            return {"fsdp": read_fsdp()}
    return {}


@mock.patch("torch.cuda.current_device", return_value=0)
def read_fsdp(device):
    plugin = FullyShardedDataParallelPlugin()
    return {field.name: str(getattr(plugin, field.name)) for field in dataclasses.fields(plugin)}


results = {case: parse(**rendered) for case, rendered in json.load(sys.stdin).items()}
print("\n" + json.dumps(results, default=str))

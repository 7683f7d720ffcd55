"""Run LLaMA-Factory's own parser over many configurations in one process, because its import is slow.

A node's python runs this file. stdin: JSON, case -> {files, environment} as rendered, and `ranks`, their number, where
the rest of the start should be checked too. stdout, last line: JSON, case -> {error, warnings, arguments}. With
sharding also {zero} or {fsdp}: what DeepSpeed or accelerate reads.

With `ranks`, the schedule is built, and under USE_MCA Megatron's groups of that many ranks (torch's fake process group)
and mcore_adapter's configuration of the model.
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

import torch
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


def parse(files, environment, ranks=0):
    """Parse a case in a folder with its files, as the ranks do, with the variables of the plan."""
    before = dict(os.environ)
    os.environ.update({name: text for name, text in environment.items() if name.startswith(("ACCELERATE_", "FSDP_"))})
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        os.chdir(folder)
        try:
            return parse_here(files["config.yaml"], ranks)
        finally:
            os.chdir("/")
            os.environ.clear()
            os.environ.update(before)
            # Otherwise the first case would decide the sharding of all cases.
            AcceleratorState._reset_state(reset_partial_state=True)


def parse_here(text, ranks):
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
        if ranks:
            start(parsed, ranks)
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


def start(parsed, ranks):
    """Build what a rank builds before its first step, as far as a machine without a GPU can."""
    training, folder = parsed[2], parsed[0].model_name_or_path
    steps = training.max_steps if training.max_steps > 0 else 100
    if os.environ.get("USE_MCA") != "1":
        from transformers import get_scheduler

        optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=training.learning_rate)
        warmup, keywords = training.get_warmup_steps(steps), training.lr_scheduler_kwargs or {}
        get_scheduler(training.lr_scheduler_type, optimizer, warmup, steps, keywords)
        return
    from mcore_adapter.models.auto.config_auto import AutoConfig
    from mcore_adapter.trainer.utils import get_megatron_lr_scheduler

    get_megatron_lr_scheduler(training, steps, SimpleNamespace(param_groups=[]))
    make_groups(training, ranks)
    # The configuration looks for kernels of Transformer Engine, which a machine without a GPU does not have.
    kernel = "megatron.core.models.common.embeddings.rope_utils.fused_apply_rotary_pos_emb"
    with mock.patch("mcore_adapter.models.model_config.initialize_megatron"), mock.patch(kernel, object):
        config = AutoConfig.from_pretrained(folder, training)
    if config.num_moe_experts and training.tensor_model_parallel_size > 1 and not config.sequence_parallel:
        raise ValueError("megatron-core MoELayer.forward: tensor parallel needs sequence parallel")
    # trainer.py: the interleaved schedule of megatron-core
    stages, micro_batches = training.pipeline_model_parallel_size, training.gradient_accumulation_steps
    if (training.virtual_pipeline_model_parallel_size and micro_batches % stages > 0) or micro_batches < 1:
        raise ValueError("megatron-core schedules.py: micro-batches of the interleaved schedule")


def make_groups(training, ranks):
    """Let Megatron-Core make its groups of all ranks."""
    from megatron.core import mpu
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=training.tensor_model_parallel_size or 1,
            pipeline_model_parallel_size=training.pipeline_model_parallel_size or 1,
            virtual_pipeline_model_parallel_size=training.virtual_pipeline_model_parallel_size,
            context_parallel_size=training.context_parallel_size or 1,
            expert_model_parallel_size=training.expert_model_parallel_size or 1,
            expert_tensor_parallel_size=training.expert_tensor_parallel_size,
            create_gloo_process_groups=False,
        )
    finally:
        mpu.destroy_model_parallel()
        torch.distributed.destroy_process_group()


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

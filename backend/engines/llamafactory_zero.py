"""LLaMA-Factory's Hugging Face trainer under DeepSpeed ZeRO: stages 2 and 3, each also with offload.

The configuration is that of LLaMA-Factory's own examples. The memory model uses their sizes
(https://github.com/hiyouga/LLaMA-Factory/tree/v0.9.5/examples/deepspeed: ds_z2_config.json, ds_z2_offload_config.json,
ds_z3_config.json, ds_z3_offload_config.json). transformers fills in "auto" values from config.yaml.
"""

import json
from collections.abc import Mapping

from backend.engines.engine import Engine, Target
from backend.engines.llamafactory import resume
from backend.engines.llamafactory_ddp import HUGGING_FACE_OWNED, hugging_face_config
from backend.job.traits import TRAITS

DEEPSPEED = "deepspeed.json"
"""File in the folder of config.yaml, which names it without a folder: the ranks start there."""


def deepspeed_config(target: Target) -> dict[str, object]:
    """Return DeepSpeed's own configuration of the job."""
    traits = target.job.traits
    zero = _stage_3() if traits.zero_stage == 3 else _stage_2()
    if traits.offloads != "none":
        zero["offload_optimizer"] = _offload(target)
    if target.job.offloads == "everything":
        zero["offload_param"] = _offload(target)
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        # The trainer uses torch's AdamW, which DeepSpeed has not tested itself.
        "zero_allow_untested_optimizer": True,
        "fp16": {
            "enabled": "auto",
            "loss_scale": 0,
            "loss_scale_window": 1000,
            "initial_scale_power": 16,
            "hysteresis": 2,
            "min_loss_scale": 1,
        },
        "bf16": {"enabled": "auto"},
        "zero_optimization": zero,
    }


def _stage_2() -> dict[str, object]:
    return {
        "stage": 2,
        "allgather_partitions": True,
        "allgather_bucket_size": 500_000_000,
        "overlap_comm": False,
        "reduce_scatter": True,
        "reduce_bucket_size": 500_000_000,
        "contiguous_gradients": True,
        "round_robin_gradients": True,
    }


def _stage_3() -> dict[str, object]:
    return {
        "stage": 3,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "sub_group_size": 1_000_000_000,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        # Without it only DeepSpeed can read the weights of a checkpoint.
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def _offload(target: Target) -> dict[str, object]:
    parallel = target.job.parallel
    where: dict[str, object] = {"device": parallel.offload_device, "pin_memory": True}
    if parallel.offload_device == "nvme":
        where["nvme_path"] = parallel.offload_folder
    return where


def _config(target: Target, output_dir: str) -> dict[str, object]:
    config = hugging_face_config(target, output_dir) | {"deepspeed": DEEPSPEED}
    # With it accelerate omits DeepSpeed (1.11.0 state.py), and DeepSpeed then treats each rank as a separate world.
    config.pop("use_cpu", None)
    return config


def _files(target: Target) -> Mapping[str, str]:
    return {DEEPSPEED: json.dumps(deepspeed_config(target), indent=2) + "\n"}


ENGINES = tuple(
    Engine(
        name=traits.engine,
        config=_config,
        owned={**HUGGING_FACE_OWNED, "deepspeed": "engine"},
        resume=resume,
        files=_files,
    )
    for traits in TRAITS.values()
    if traits.zero_stage
)

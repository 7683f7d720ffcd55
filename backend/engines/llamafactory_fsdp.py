"""LLaMA-Factory's Hugging Face trainer under torch FSDP 1 or 2, through accelerate.

`accelerate launch` passes a plan to its ranks in environment variables and starts torchrun. We set the same variables
(accelerate 1.11.0 utils/launch.py prepare_multi_gpu_env, read by utils/dataclasses.py FullyShardedDataParallelPlugin).
Keys of config.yaml are not enough: LLaMA-Factory itself reads ACCELERATE_USE_FSDP and FSDP_VERSION (0.9.5
src/llamafactory/model/model_utils/checkpointing.py). Values as in LLaMA-Factory's examples/accelerate.
"""

from collections.abc import Mapping

from backend.engines.engine import Engine, Target
from backend.engines.llamafactory import resume
from backend.engines.llamafactory_ddp import HUGGING_FACE_OWNED, hugging_face_config


def fsdp_variables(target: Target) -> Mapping[str, str]:
    """Return the variables from which accelerate reads the plan."""
    fsdp = target.job.parallel.fsdp
    # One rank per node reads the weights and sends them to the others. Without it every rank reads all of them onto
    # its own device. FSDP1 can send them only between GPUs.
    loads_once = fsdp.version == 2 or not target.on_cpu
    variables = {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": str(fsdp.version),
        # The model names its own layers (_no_split_modules).
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": _switch(loads_once),
        "FSDP_OFFLOAD_PARAMS": _switch(fsdp.offload),
        # Checkpoints that every program can read.
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    }
    if fsdp.version == 2:
        return variables | {"FSDP_RESHARD_AFTER_FORWARD": _switch(fsdp.reshard_after_forward)}
    return variables | {
        "FSDP_SHARDING_STRATEGY": "FULL_SHARD" if fsdp.reshard_after_forward else "SHARD_GRAD_OP",
        "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE",
        "FSDP_SYNC_MODULE_STATES": _switch(loads_once),
        # Needed for frozen and trained parameters in one layer: LoRA, partial training.
        "FSDP_USE_ORIG_PARAMS": "true",
    }


def _switch(on: bool) -> str:
    return "true" if on else "false"


ENGINE = Engine(
    name="llamafactory-fsdp",
    config=hugging_face_config,
    environment=fsdp_variables,
    owned=HUGGING_FACE_OWNED,
    resume=resume,
)

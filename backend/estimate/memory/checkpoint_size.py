"""The size of a job's checkpoint on disk."""

from backend.estimate.estimate import estimate_resolved, layers_of_job
from backend.estimate.model.parameters import model_parameters
from backend.job.job import Job
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import ProblemsError

WEIGHTS_ALONE = ("save_only_model", "no_save_optim")
"""Keys of transformers' Trainer, of which mcore_adapter's is one, and of Megatron."""


def checkpoint_bytes(job: Job) -> int | None:
    """Return the bytes of one checkpoint; None if the job's memory is not modelled.

    A checkpoint has the trained weights with their optimizer states, and the frozen weights. Adapters are saved without
    the frozen weights. If the job saves weights only, there are no optimizer states. FSDP and ZeRO-2 write the weights
    twice, once for loading and once for resuming (`_save_optimizer_and_scheduler` in
    https://github.com/huggingface/transformers/blob/main/src/transformers/trainer.py and `_save_checkpoint` in
    https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/engine.py). Runs of a tiny model in fp32
    wrote 1.77 (DDP), 2.34 (FSDP), 2.93 (ZeRO-2) and 2.38 MiB (ZeRO-3); this function returns 1.69, 2.26, 2.82 and 2.26.
    """
    memory = job.traits.memory
    try:
        shape = resolve_model(job.model)
        stages = estimate_resolved(job, shape, resolve_gpu(job.cluster)).stages
    except ProblemsError:
        return None
    on_ranks = sum(stage.parameters for stage in stages)
    if memory is None or not on_ranks:
        return None
    total = model_parameters(layers_of_job(job, shape))
    trained = total * sum(stage.trainable_parameters for stage in stages) / on_ranks
    frozen = 0.0 if job.training.method in ("lora", "qlora") else total - trained
    weights_alone = any(job.extra.get(key) for key in WEIGHTS_ALONE)
    optimizer_bytes = 0 if weights_alone else memory.optimizer_bytes
    copies = 2 if (job.traits.is_fsdp or job.traits.zero_stage == 2) and not weights_alone else 1
    least = 4 if job.training.precision == "fp32" else 0
    weights = trained * max(least, memory.weight_bytes) + frozen * max(least, memory.frozen_bytes)
    return round(copies * weights + trained * optimizer_bytes)

"""A job in the LLaMA-Factory keys that all its trainers share.

Keys and their meaning: LLaMA-Factory 0.9.5 src/llamafactory/hparams/*.py, transformers 5.6.0 training_args.py
(https://github.com/hiyouga/LLaMA-Factory/tree/v0.9.5, https://github.com/huggingface/transformers/tree/v5.6.0).
LLaMA-Factory refuses unknown keys, but checks neither types nor choices. So the job's own checks must do it.
"""

from collections.abc import Mapping

from backend.engines.engine import Target
from backend.engines.keys import carried
from backend.job.mixing import CONCAT

FINETUNING_TYPES: Mapping[str, str] = {"full": "full", "partial": "freeze", "lora": "lora", "qlora": "lora"}

# Parameters whose key carries the job's value unchanged.
_DATA = (
    "training.dataset", "training.dataset_dir", "training.template", "training.cutoff_len", "training.packing",
    "training.workers.preprocessing", "training.workers.data_loader",
)  # fmt: skip
_MIXING = ("training.mix_strategy", "training.interleave_probs")
_VISION = (
    "training.image_max_pixels", "training.video_max_pixels", "training.freeze.vision_tower",
    "training.freeze.projector", "training.freeze.language_model",
)  # fmt: skip
_LORA = ("training.lora.rank", "training.lora.alpha", "training.lora.targets")
_PREFERENCE = ("training.dpo.beta", "training.dpo.loss")
_SCHEDULE = ("training.learning_rate", "training.lr_scheduler", "training.weight_decay", "training.seed")
_RECORDS = (
    "training.logging_steps", "training.save_steps", "training.save_total_limit", "training.ddp_timeout_s",
)  # fmt: skip


def common_config(target: Target, output_dir: str) -> dict[str, object]:
    """Return the keys of every LLaMA-Factory trainer, in an order for human readers."""
    job, training = target.job, target.job.training
    config: dict[str, object] = {
        "model_name_or_path": job.model.path,
        "stage": training.stage,
        "do_train": True,
        "finetuning_type": FINETUNING_TYPES[training.method],
    }
    if training.method == "partial":
        config |= carried(job, "llamafactory", "training.trainable_layers")
    if training.method in ("lora", "qlora"):
        config |= carried(job, "llamafactory", *_LORA)
    if training.method == "qlora":
        # With quantization_bit alone, LLaMA-Factory prints a recommendation of upcast_layernorm.
        config |= {"quantization_bit": 4, "upcast_layernorm": True}
    if training.stage == "dpo":
        config |= carried(job, "llamafactory", *_PREFERENCE)
    if training.stage == "kto":
        config |= carried(job, "llamafactory", "training.dpo.beta")
    config |= carried(job, "llamafactory", *_DATA)
    if training.stage == "pt" and training.packing:
        # It is the default of this stage. Written out, it would shorten every sequence by one token (data_args.py).
        del config["packing"]
    if training.mix_strategy != CONCAT:
        config |= carried(job, "llamafactory", *_MIXING)
    if target.shape.vision:
        config |= carried(job, "llamafactory", *_VISION)
    config |= _schedule(target)
    config |= {"output_dir": output_dir, **carried(job, "llamafactory", *_RECORDS), **_evaluation(target)}
    # An empty list would be written as []. transformers accepts it, but documents `none`.
    config["report_to"] = list(training.report_to) or "none"
    return config


def _schedule(target: Target) -> dict[str, object]:
    training = target.job.training
    config = carried(target.job, "llamafactory", "training.micro_batch_size")
    config["gradient_accumulation_steps"] = target.job.accumulation
    config |= carried(target.job, "llamafactory", *_SCHEDULE)
    if training.max_steps is None:
        config["num_train_epochs"] = training.num_train_epochs
    else:
        config["max_steps"] = training.max_steps
    # transformers 5 deprecates warmup_ratio in favour of a fractional warmup_steps. LLaMA-Factory also accepts 4.57,
    # which would read 0.03 steps and would not warm up at all. warmup_ratio has one meaning in both versions.
    if training.warmup_ratio > 0:
        config["warmup_ratio"] = training.warmup_ratio
    # transformers refuses this scheduler without a lowest rate; Megatron would take 0.
    if training.lr_scheduler == "cosine_with_min_lr":
        config["lr_scheduler_kwargs"] = {"min_lr": lowest_rate(training.learning_rate)}
    return config


def lowest_rate(learning_rate: float) -> float:
    """Return the rate at the end of cosine_with_min_lr: a tenth, without the noise of binary fractions."""
    return float(f"{learning_rate / 10:.12g}")


def _evaluation(target: Target) -> dict[str, object]:
    training = target.job.training
    held_out = carried(target.job, "llamafactory", "training.eval_size", "training.eval_dataset")
    if training.eval_steps is None:
        return held_out
    # The default of 8 would need more memory than training does.
    return {
        **held_out,
        "eval_strategy": "steps",
        "eval_steps": training.eval_steps,
        "per_device_eval_batch_size": training.micro_batch_size,
    }


def resume(target: Target, checkpoint: str) -> dict[str, object]:
    """Return the keys of resuming. By default LLaMA-Factory would take the newest checkpoint, complete or not."""
    return {"resume_from_checkpoint": checkpoint}


def precision(name: str) -> dict[str, object]:
    """Return the two switches of mixed precision; both off is fp32."""
    return {"bf16": name == "bf16", "fp16": name == "fp16"}


def cpu_config(target: Target) -> dict[str, object]:
    """Return the keys of ranks without a GPU: without `use_cpu`, accelerate silently trains each of them alone."""
    return {"use_cpu": True, "ddp_backend": "gloo"} if target.on_cpu else {}

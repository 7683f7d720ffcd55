"""A job in LLaMA-Factory's keys, as far as all its trainers share them.

Keys and their meaning: LLaMA-Factory 0.9.5 src/llamafactory/hparams/*.py, transformers 5.6.0 training_args.py
(https://github.com/hiyouga/LLaMA-Factory/tree/v0.9.5, https://github.com/huggingface/transformers/tree/v5.6.0).
LLaMA-Factory refuses keys it does not know, but checks neither types nor choices, so the job's own checks must hold.
"""

from collections.abc import Mapping

from backend.engines.engine import Target
from backend.job.mapping import get_value

FINETUNING_TYPES: Mapping[str, str] = {"full": "full", "partial": "freeze", "lora": "lora", "qlora": "lora"}

# Keys that carry one value of the job as it is; those whose value is None are left out.
_DATA = {
    "dataset": "training.dataset",
    "dataset_dir": "training.dataset_dir",
    "template": "training.template",
    "cutoff_len": "training.cutoff_len",
    "packing": "training.packing",
    "preprocessing_num_workers": "training.workers.preprocessing",
    "dataloader_num_workers": "training.workers.data_loader",
}
_VISION = {
    "image_max_pixels": "training.image_max_pixels",
    "video_max_pixels": "training.video_max_pixels",
    "freeze_vision_tower": "training.freeze.vision_tower",
    "freeze_multi_modal_projector": "training.freeze.projector",
    "freeze_language_model": "training.freeze.language_model",
}
_PARTIAL = {"freeze_trainable_layers": "training.trainable_layers"}
_LORA = {
    "lora_rank": "training.lora.rank",
    "lora_alpha": "training.lora.alpha",
    "lora_target": "training.lora.targets",
}
_PREFERENCE = {"pref_beta": "training.dpo.beta", "pref_loss": "training.dpo.loss"}
_SCHEDULE = {
    "per_device_train_batch_size": "training.micro_batch_size",
    "gradient_accumulation_steps": "accumulation",
    "learning_rate": "training.learning_rate",
    "lr_scheduler_type": "training.lr_scheduler",
    "weight_decay": "training.weight_decay",
    "seed": "training.seed",
}
_RECORDS = {
    "logging_steps": "training.logging_steps",
    "save_steps": "training.save_steps",
    "save_total_limit": "training.save_total_limit",
    "ddp_timeout": "training.ddp_timeout_s",
}

OWNED: Mapping[str, str] = {
    "model_name_or_path": "model.path",
    "stage": "training.stage",
    "do_train": "training.stage",
    "finetuning_type": "training.method",
    **_DATA,
    **_VISION,
    **_PARTIAL,
    **_LORA,
    "quantization_bit": "training.method",
    "upcast_layernorm": "training.method",
    **_PREFERENCE,
    **_SCHEDULE,
    "gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "num_train_epochs": "training.num_train_epochs",
    "max_steps": "training.max_steps",
    "warmup_ratio": "training.warmup_ratio",
    "warmup_steps": "training.warmup_ratio",
    **_RECORDS,
    "output_dir": "training.output_dir",
    "eval_strategy": "training.eval_steps",
    "eval_steps": "training.eval_steps",
    "per_device_eval_batch_size": "training.micro_batch_size",
    "report_to": "training.report_to",
    "bf16": "training.precision",
    "fp16": "training.precision",
    "use_cpu": "cluster.gpu",
    "ddp_backend": "cluster.gpu",
}
"""Configuration key -> the job path that decides it."""


def common_config(target: Target, output_dir: str) -> dict[str, object]:
    """The keys that every LLaMA-Factory trainer takes, in a reader's order."""
    job, training = target.job, target.job.training
    config: dict[str, object] = {
        "model_name_or_path": job.model.path,
        "stage": training.stage,
        "do_train": True,
        "finetuning_type": FINETUNING_TYPES[training.method],
    }
    if training.method == "partial":
        config |= _taken(target, _PARTIAL)
    if training.method in ("lora", "qlora"):
        config |= _taken(target, _LORA)
    if training.method == "qlora":
        # LLaMA-Factory recommends the second, aloud, wherever it meets the first.
        config |= {"quantization_bit": 4, "upcast_layernorm": True}
    if training.stage == "dpo":
        config |= _taken(target, _PREFERENCE)
    config |= _taken(target, _DATA)
    if target.shape.vision:
        config |= _taken(target, _VISION)
    config |= _schedule(target)
    config |= {"output_dir": output_dir, **_taken(target, _RECORDS), **_evaluation(target)}
    # An empty list would be written as [], which transformers takes, but `none` is what its documentation says.
    config["report_to"] = list(training.report_to) or "none"
    return config


def _schedule(target: Target) -> dict[str, object]:
    training = target.job.training
    config = _taken(target, _SCHEDULE)
    if training.max_steps is None:
        config["num_train_epochs"] = training.num_train_epochs
    else:
        config["max_steps"] = training.max_steps
    # transformers 5 deprecates warmup_ratio in favour of a fractional warmup_steps. 4.57, which LLaMA-Factory takes as
    # well, would read 0.03 steps there and not warm up at all; warmup_ratio means the same to both.
    if training.warmup_ratio > 0:
        config["warmup_ratio"] = training.warmup_ratio
    # transformers refuses this scheduler without a lowest rate, Megatron would take 0.
    if training.lr_scheduler == "cosine_with_min_lr":
        config["lr_scheduler_kwargs"] = {"min_lr": training.learning_rate / 10}
    return config


def _evaluation(target: Target) -> dict[str, object]:
    training = target.job.training
    if training.eval_steps is None:
        return {}
    # The default of 8 would need more memory than training does.
    return {
        "eval_strategy": "steps",
        "eval_steps": training.eval_steps,
        "per_device_eval_batch_size": training.micro_batch_size,
    }


def resume(target: Target, checkpoint: str) -> dict[str, object]:
    """Said outright: left to itself LLaMA-Factory takes the newest folder of output_dir, complete or not."""
    return {"resume_from_checkpoint": checkpoint}


def precision(name: str) -> dict[str, object]:
    """The two switches of mixed precision; both off is fp32."""
    return {"bf16": name == "bf16", "fp16": name == "fp16"}


def cpu_config(target: Target) -> dict[str, object]:
    """What ranks without a GPU need: accelerate trains them apart, in silence, unless it is told `use_cpu`."""
    return {"use_cpu": True, "ddp_backend": "gloo"} if target.on_cpu else {}


def _taken(target: Target, keys: Mapping[str, str]) -> dict[str, object]:
    values = {key: get_value(target.job, path) for key, path in keys.items()}
    return {key: value for key, value in values.items() if value is not None}

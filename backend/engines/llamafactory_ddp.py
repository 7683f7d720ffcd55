"""LLaMA-Factory's Hugging Face trainer under plain DDP: full, partial and LoRA training."""

from collections.abc import Mapping

from backend.engines.engine import Engine, Target
from backend.engines.keys import owned_keys
from backend.engines.llamafactory import common_config, cpu_config, precision, resume


def hugging_face_config(target: Target, output_dir: str) -> dict[str, object]:
    """Return the keys of LLaMA-Factory's Hugging Face trainer."""
    config = common_config(target, output_dir)
    config |= precision(target.job.training.precision)
    # LLaMA-Factory turns gradient checkpointing on by default.
    if target.job.recompute == "none":
        config["disable_gradient_checkpointing"] = True
    if target.job.training.liger:
        config["enable_liger_kernel"] = True
    # The first key makes the trainer count tokens. The second one logs a NaN loss as NaN, not as a mean of the others.
    config |= {"include_num_input_tokens_seen": True, "logging_nan_inf_filter": False}
    return config | cpu_config(target)


HUGGING_FACE_OWNED: Mapping[str, str] = owned_keys("llamafactory", "hugging_face")

ENGINE = Engine(
    name="llamafactory-ddp",
    config=hugging_face_config,
    owned=HUGGING_FACE_OWNED,
    resume=resume,
)

"""ms-swift's arguments to generate with a model as it was trained: the same template, tokenizer and images.

Keys: ms-swift 4.6.0 swift/arguments/base_args/*.py. Of a checkpoint that has ms-swift's args.json, it takes what these
leave open from there, such as the system text (base_args.py load_args_from_ckpt).
"""

from backend.engines import data_config
from backend.engines.engine import target_of
from backend.engines.keys import DTYPES
from backend.engines.swift import swift_command
from backend.job.job import Job

_KEPT = (
    "model_type", "template", "system", "use_chat_template", "enable_thinking", "preserve_thinking", "response_prefix",
    "agent_template", "norm_bbox", "max_pixels", "attn_impl", "experts_impl", "new_special_tokens", "rope_scaling",
    "max_model_len", "model_kwargs", "model_revision", "local_repo_path", "external_plugins",
    "quant_method", "quant_bits", "bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant",
)  # fmt: skip
"""Keys of the training that decide what the model reads, or how its weights are loaded."""


def swift_inference_keys(job: Job) -> dict[str, object]:
    """Return the arguments that all models of a trained job share. Raises ProblemsError for an unknown model."""
    # `swift pt` trains without a chat template, unlike BaseArguments (swift/arguments/pretrain_args.py).
    config = {**({"use_chat_template": False} if job.training.stage == "pt" else {}), **data_config(job)}
    # A training that reads every round keeps the thoughts of all of them, but a chat would drop the earlier ones
    # (swift/template/base.py _get_preserve_thinking). RLHF reads the last round.
    default = "last_round" if swift_command(target_of(job)) == "rlhf" else "default"
    if not str(config.get("loss_scale") or default).startswith("last_round"):
        config.setdefault("preserve_thinking", True)
    kept = {key: config[key] for key in _KEPT if config.get(key) is not None}
    return {**kept, "torch_dtype": DTYPES[job.training.precision]}


def swift_model_keys(model: str, adapter: str | None = None) -> dict[str, object]:
    """Return the arguments of one model: its folder, and the folder of an adapter on it."""
    keys: dict[str, object] = {"model": model, "tuner_type": "lora" if adapter else "full"}
    return {**keys, "adapters": [adapter]} if adapter else keys

"""LLaMA-Factory's arguments, tokenizer and template for a configuration, without a GPU.

It follows LLaMA-Factory's own workflows (0.9.5 src/llamafactory/train/{pt,sft,dpo,mca}/workflow.py) up to the data.
Under Megatron samples are one token longer, and its collator cuts this token off.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DROPPED = (
    *("deepspeed", "fsdp", "fsdp_config", "ddp_backend", "resume_from_checkpoint", "tokenized_path", "plot_loss"),
    *("bf16", "fp16", "pure_bf16", "tf32", "fp8", "optim", "quantization_bit", "enable_liger_kernel", "use_unsloth"),
)
"""Keys of the training that need a device, a package or a folder. Reading the data needs none of these."""
STAGES = {"dpo": "rm"}
"""Stage of the configuration -> stage of its data."""


class EngineData(NamedTuple):
    """What LLaMA-Factory's data code needs."""

    model: Any
    data: Any
    training: Any
    stage: str
    tokenizer: Any
    """A mapping with `tokenizer` and `processor`."""
    template: Any


def read_engine(config: dict[str, Any], megatron: bool) -> EngineData:
    """Parse a configuration and load its tokenizer."""
    from llamafactory.data import get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer

    kept = {key: value for key, value in config.items() if key not in DROPPED}
    kept.update(use_cpu=True, report_to="none")
    model, data, training, finetuning, _ = get_train_args(kept)
    if megatron:
        if finetuning.stage == "sft":
            data.neat_packing = data.neat_packing or bool(config.get("sequence_packing"))
            data.packing = data.neat_packing or data.packing
        data.cutoff_len += 1
    tokenizer = load_tokenizer(model)
    template = get_template_and_fix_tokenizer(tokenizer["tokenizer"], data)
    stage = STAGES.get(finetuning.stage, finetuning.stage)
    return EngineData(model, data, training, stage, tokenizer, template)

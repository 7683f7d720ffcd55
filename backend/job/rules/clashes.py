"""Keys of `extra` that LLaMA-Factory 0.9.5, mcore_adapter and ms-swift refuse together with another value of the job.

Sources: LLaMA-Factory src/llamafactory/hparams/{parser,data_args,finetuning_args,model_args}.py; mcore_adapter
training_args.py, trainer/trainer.py, trainer/dpo_trainer.py; megatron-core 0.16.1 transformer/transformer_config.py;
ms-swift 4.6.0 swift/arguments/{sft_args,rlhf_args}.py, base_args/{base_args,model_args}.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from backend.job.attention import asked_of_swift
from backend.job.extra_values import mapping_of
from backend.job.job import Job
from backend.job.mixing import mixing_of
from backend.job.rules.swift_rlhf_keys import RLHF_KEYS


@dataclass(frozen=True, kw_only=True, slots=True)
class Clash:
    """A key, and the value of the job that it conflicts with."""

    key: str
    applies: Callable[[Job], bool]
    """Whether the job has that value."""
    other: str
    """The conflicting part of the job, in technical terms that need no translation."""


COUNT_IF_ZERO = frozenset({
    "adapter_name_or_path", "early_stopping_steps", "eval_dataset", "interleave_probs", "loraplus_lr_ratio",
    "max_samples", "moe_expert_capacity_factor", *RLHF_KEYS,
})  # fmt: skip
"""Keys that count with 0, False or an empty text too: the engine compares them with None (`loraplus_lr_ratio is not
None`), or does not know them."""


def is_given(job: Job, key: str) -> bool:
    """Return whether the job has a value of this key other than the one that switches it off."""
    value = job.extra.get(key)
    return value is not None if key in COUNT_IF_ZERO else bool(value)


def _not_sft(job: Job) -> bool:
    return job.training.stage != "sft"


def _trains_a_reward_model(job: Job) -> bool:
    return job.training.stage == "rm"


def _quantised(job: Job) -> bool:
    return job.training.method == "qlora"


def _without_limit(job: Job) -> bool:
    return job.training.max_steps is None


def _prepared(job: Job) -> bool:
    return job.prepares_data


def _evaluates_on_other_data(job: Job) -> bool:
    return bool(job.training.eval_dataset) or is_given(job, "eval_dataset")


def _streams(job: Job) -> bool:
    return bool(job.extra.get("streaming"))


def _takes_a_share(job: Job) -> bool:
    share = job.eval_size
    return isinstance(share, int | float) and 0 < share < 1


def _concatenates(job: Job) -> bool:
    return not mixing_of(job).interleaves


def _recomputes_all(job: Job) -> bool:
    return job.traits.is_megatron and job.recompute == "full"


def _cuts_sequences(job: Job) -> bool:
    return job.traits.is_megatron and job.parallel.context > 1


def _on_cpu(job: Job) -> bool:
    return job.traits.is_megatron and job.cluster.gpu == "cpu"


def _megatron_dpo(job: Job) -> bool:
    return job.traits.is_megatron and job.training.stage == "dpo"


def _packs_sequences(job: Job) -> bool:
    return job.traits.is_megatron and bool(job.extra.get("neat_packing") or job.extra.get("sequence_packing"))


def _lacks(key: str) -> Callable[[Job], bool]:
    return lambda job: job.traits.is_megatron and not is_given(job, key)


def _gathers_all(job: Job) -> bool:
    return job.traits.is_megatron and job.parallel.moe_token_dispatcher == "allgather"  # noqa: S105 - no password


def _without_adapters(job: Job) -> bool:
    return job.training.method not in ("lora", "qlora")


def _with_adapters(job: Job) -> bool:
    return job.training.method in ("lora", "qlora")


def _has(*keys: str) -> Callable[[Job], bool]:
    return lambda job: any(is_given(job, key) for key in keys)


def _full(job: Job) -> bool:
    return job.training.method == "full"


def _trains_another_preference(job: Job) -> bool:
    return job.training.stage == "dpo" and job.training.dpo.loss != "sigmoid"


def _has_several_adapters(job: Job) -> bool:
    return _quantised(job) and "," in str(job.extra.get("adapter_name_or_path"))


def _layerwise(optimizer: str) -> Callable[[Job], bool]:
    """Return whether the job trains with an optimizer whose layer-wise form LLaMA-Factory has in one process alone."""
    return lambda job: not job.traits.is_megatron and is_given(job, optimizer)


def _evaluates_in(precision: str) -> Callable[[Job], bool]:
    """Return whether DeepSpeed would get both 16-bit types (transformers 5.6.0 integrations/deepspeed.py: `args.bf16 or
    args.bf16_full_eval`): `bfloat16 and fp16 modes cannot be simultaneously enabled`."""
    other = {"bf16": "fp16", "fp16": "bf16"}[precision]
    return lambda job: job.traits.is_deepspeed and job.training.precision == other


def _chooses_another(key: str, value: str) -> Callable[[Job], bool]:
    return lambda job: job.extra.get(key) not in (None, value)


def _never_evaluates(job: Job) -> bool:
    return not job.traits.is_megatron and job.training.eval_steps is None


def _saves_between_evaluations(job: Job) -> bool:
    """Return whether a checkpoint would have no evaluation of its own."""
    evaluation = job.training.eval_steps
    if job.traits.is_megatron or evaluation is None:
        return False
    # transformers 5.6.0 training_args.py: "requires the save and eval strategy to match".
    strategy = job.extra.get("save_strategy")
    return strategy in ("epoch", "no") or (strategy in (None, "steps") and job.training.save_steps % evaluation != 0)


def _knows_no_best_model(job: Job) -> bool:
    return not _has("load_best_model_at_end", "metric_for_best_model")(job)


ADAPTED_ALONE = ("use_dora", "use_rslora", "loraplus_lr_ratio", "pissa_init", "adapter_name_or_path")
"""Keys that LLaMA-Factory takes with LoRA alone (finetuning_args.py __post_init__, parser.py _verify_model_args)."""
PROJECTING = ("use_galore", "use_apollo", "use_badam")
"""Keys that it takes one of, without LoRA (finetuning_args.py)."""
MOST_PIXELS = {"image_max_pixels": 768 * 768, "video_max_pixels": 256 * 256}
"""Its bounds of pixels, and their defaults (model_args.py: `image_max_pixels cannot be smaller than
image_min_pixels`)."""
CLASHES = (
    *(Clash(key=key, applies=_without_adapters, other="training.method: full, partial") for key in ADAPTED_ALONE),
    *(Clash(key=key, applies=_with_adapters, other="training.method: lora, qlora") for key in PROJECTING),
    # BAdam needs ZeRO-3, with which the other two do not go.
    Clash(key="use_galore", applies=_has("use_apollo"), other="use_apollo"),
    Clash(key="use_llama_pro", applies=_full, other="training.method: full"),
    Clash(key="dpo_label_smoothing", applies=_trains_another_preference, other="training.dpo.loss"),
    Clash(key="create_new_adapter", applies=lambda job: _quantised(job) and is_given(job, "adapter_name_or_path"),
          other="training.method: qlora, adapter_name_or_path"),
    Clash(key="adapter_name_or_path", applies=_has_several_adapters, other="training.method: qlora"),
    Clash(key="quantization_device_map", applies=lambda job: job.extra.get("quantization_device_map") == "auto",
          other="do_train"),
    Clash(key="infer_backend", applies=_chooses_another("infer_backend", "huggingface"), other="do_train"),
    Clash(key="badam_mode", applies=lambda job: _has("use_badam")(job) and job.extra.get("badam_mode") == "ratio",
          other="torchrun"),
    *(Clash(key=f"{precision}_full_eval", applies=_evaluates_in(precision), other="DeepSpeed, training.precision")
      for precision in ("bf16", "fp16")),
    # transformers 5.6.0 training_args.py __post_init__ and trainer_callback.py EarlyStoppingCallback.
    *(Clash(key=key, applies=_never_evaluates, other="training.eval_steps: null")
      for key in ("load_best_model_at_end", "early_stopping_steps")),
    Clash(key="load_best_model_at_end", applies=_saves_between_evaluations,
          other="training.save_steps, training.eval_steps"),
    Clash(key="early_stopping_steps", applies=_knows_no_best_model, other="metric_for_best_model: null"),
    *(
        Clash(key=key, applies=_not_sft, other="training.stage: pt, rm, dpo, kto")
        for key in ("neat_packing", "train_on_prompt", "mask_history")
    ),
    *(Clash(key=key, applies=lambda job: job.traits.is_deepspeed, other="DeepSpeed")
      for key in ("use_galore", "use_apollo")),
    *(Clash(key=f"{name}_layerwise", applies=_layerwise(f"use_{name}"), other="torchrun")
      for name in ("galore", "apollo")),
    Clash(key="use_badam", applies=lambda job: not (job.traits.is_megatron or job.traits.is_zero3),
          other="DDP, ZeRO-2, FSDP"),
    Clash(key="pissa_init", applies=lambda job: job.traits.is_zero3, other="DeepSpeed ZeRO-3"),
    Clash(key="pissa_init", applies=lambda job: job.has_reference, other="training.stage: dpo, kto"),
    Clash(key="load_best_model_at_end", applies=_trains_a_reward_model, other="training.stage: rm"),
    Clash(key="pissa_init", applies=_quantised, other="training.method: qlora"),
    Clash(key="resize_vocab", applies=_quantised, other="training.method: qlora"),
    Clash(key="fp8", applies=_quantised, other="training.method: qlora"),
    Clash(key="streaming", applies=_without_limit, other="training.max_steps: null"),
    Clash(key="max_samples", applies=_streams, other="streaming"),
    Clash(key="streaming", applies=_takes_a_share, other="val_size < 1"),
    Clash(key="val_size", applies=_evaluates_on_other_data, other="eval_dataset"),
    Clash(key="mask_history", applies=lambda job: bool(job.extra.get("train_on_prompt")), other="train_on_prompt"),
    Clash(key="interleave_probs", applies=_concatenates, other="mix_strategy: concat"),
    *(Clash(key=key, applies=_prepared, other="training.prepare") for key in ("streaming", "tokenized_path")),
    Clash(key="variable_seq_lengths", applies=_gathers_all, other="parallel.moe_token_dispatcher: allgather"),
    Clash(key="moe_shared_expert_overlap", applies=_gathers_all, other="parallel.moe_token_dispatcher: allgather"),
    Clash(key="moe_layer_recompute", applies=_recomputes_all, other="parallel.recompute: full"),
    Clash(key="moe_pad_expert_input_to_capacity", applies=_lacks("moe_expert_capacity_factor"),
          other="moe_expert_capacity_factor: null"),
    Clash(key="fp8_param", applies=_lacks("fp8"), other="fp8: null"),
    *(Clash(key=key, applies=_cuts_sequences, other="CP > 1") for key in ("neat_packing", "sequence_packing")),
    *(Clash(key=key, applies=_on_cpu, other="transformer_impl: local") for key in ("neat_packing", "sequence_packing")),
    *(Clash(key=key, applies=_megatron_dpo, other="training.stage: dpo")
      for key in ("sequence_packing", "calculate_per_token_loss", "mtp_num_layers")),
    # trainer.py _prepare_train_inputs then reads position_ids, which it has not computed.
    Clash(key="mtp_num_layers", applies=_packs_sequences, other="neat_packing, sequence_packing"),
)  # fmt: skip
"""Keys that LLaMA-Factory, with Hugging Face's trainer or Megatron-Core, refuses together with another value of the
job."""


def _trains_no_pairs(job: Job) -> bool:
    return job.training.stage in ("pt", "sft")


def _uses_no_reference(job: Job) -> bool:
    return not job.has_reference or job.training.method != "full"


def _has_no_flash_attention(job: Job) -> bool:
    return not str(asked_of_swift(job)).startswith("flash_attention_")


def _packs_or_streams(job: Job) -> bool:
    return job.training.packing or _streams(job)


def _scales_by_an_unknown_factor(job: Job) -> bool:
    """Return whether ms-swift cannot compute the factor: neither it nor the longest sequence is given."""
    scaling = mapping_of(job.extra.get("rope_scaling"))
    is_plain = scaling.get("rope_type", scaling.get("type")) == "default"
    return "factor" not in scaling and not is_plain and not is_given(job, "max_model_len")


def swift_kind(job: Job) -> str:
    """Return the rlhf_type of a job of ms-swift; the stage if it is none."""
    loss = job.training.dpo.loss
    return {"orpo": "orpo", "simpo": "cpo"}.get(loss, "dpo") if job.training.stage == "dpo" else job.training.stage


PADDED_KINDS = ("rm", "orpo", "cpo")
"""Kinds of training for which ms-swift has neither packing nor `padding_free` (4.6.0 arguments/rlhf_args.py: `The
current rlhf_type 'rm' does not support padding_free/packing.`)."""
SWIFT_CLASHES = (
    Clash(key="load_best_model_at_end", applies=_never_evaluates, other="training.eval_steps: null"),
    Clash(key="load_best_model_at_end", applies=_saves_between_evaluations,
          other="training.save_steps, training.eval_steps"),
    *(Clash(key=key, applies=_trains_no_pairs, other="training.stage: pt, sft") for key in sorted(RLHF_KEYS)),
    Clash(key="ref_model", applies=_uses_no_reference, other="training.stage, training.method"),
    Clash(key="padding_free", applies=_has_no_flash_attention, other="attn_impl"),
    Clash(key="lazy_tokenize", applies=_packs_or_streams, other="training.packing, streaming"),
    Clash(key="rope_scaling", applies=_scales_by_an_unknown_factor, other="max_model_len: null"),
    Clash(key="padding_free", applies=lambda job: swift_kind(job) in PADDED_KINDS,
          other="training.stage, training.dpo.loss"),
)  # fmt: skip
"""Keys that ms-swift's Hugging Face trainers refuse together with another value of the job."""

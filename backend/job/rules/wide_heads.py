"""Rules for heads that are wider than FlashAttention allows, as in the global layers of Gemma 4."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.model.shape import WIDEST_HEAD
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
megatron = registrar(RULES, lambda traits: traits.is_megatron)
hugging_face = registrar(RULES, lambda traits: not traits.is_megatron)

UNFUSED = ("unfused", "local")


@megatron
def wide_heads_need_unfused_attention(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift asks Megatron-Core for `flash` (4.6.0 megatron_args.py attention_backend). Transformer Engine has no
    such implementation for these heads. This follows from the sources; no GPU was used."""
    if shape.widest_head <= WIDEST_HEAD or job.extra.get("attention_backend") in UNFUSED:
        return None
    return problem("heads_too_wide", "engine", width=shape.widest_head, widest=WIDEST_HEAD, case="megatron",
                   edit={"extra": {**job.extra, "attention_backend": "unfused"}})  # fmt: skip


@hugging_face
def wide_heads_do_without_flash_attention_2(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift's packing asks for a flash attention by name (4.6.0 arguments/sft_args.py _check_padding_free). Without
    it both engines use torch's SDPA, which has a kernel for every width."""
    if shape.widest_head <= WIDEST_HEAD:
        return None
    if job.traits.environment == "swift":
        asked = job.training.packing or str(job.extra.get("attn_impl")).startswith("flash")
        case, edit = "swift", {"training.packing": False, "extra": {**job.extra, "attn_impl": "sdpa"}}
    else:
        asked = job.extra.get("flash_attn") == "fa2"
        case, edit = "llamafactory", {"extra": {**job.extra, "flash_attn": "sdpa"}}
    if not asked:
        return None
    return problem("heads_too_wide", "engine", width=shape.widest_head, widest=WIDEST_HEAD, case=case, edit=edit)

"""Rules for LLaMA-Factory's packing on its Hugging Face engines, in stage sft.

Sources are files of LLaMA-Factory 0.9.5. Those of its main, ff6d4d12e, are the same but where a rule says otherwise.
"""

from backend.job.attention import (
    FLASH_ATTENTION,
    asked_of_llamafactory,
    masks_packs,
    of_llamafactory,
    takes_flash_attention,
    takes_flash_attention_if_installed,
)
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.model.attention_shape import ConvolvedAttention, FullAttention
from backend.job.model.linear_shape import GatedDeltaNet, LightningAttention, ShortConvolution, StateSpace
from backend.job.presets import Gpu
from backend.job.problems import Problem, Severity
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
rule = registrar(RULES)

MULTIPLE = 8
"""What LLaMA-Factory pads sequences to (train/sft/workflow.py pad_to_multiple_of)."""
OWN_POSITIONS = (
    "ernie4_5_vl_moe", "glm46v", "glm4v", "glm4v_moe", "glm_ocr", "paddleocr_vl", "qwen2_5_omni", "qwen2_5_vl",
    "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe",
)  # fmt: skip
"""Types whose positions the collator computes anew: those with get_rope_index (transformers 5.6.0)."""
MASKS_OF_TOKENS = ("bloom", "jamba", "nemotron_h")
"""Types whose class takes a mask of tokens alone (transformers 5.6.0 modeling_bloom.py build_alibi_tensor,
modeling_jamba.py slow_forward and cuda_kernels_forward, modeling_nemotron_h.py the same; small models of them end with
an error on CPU, tests/engines/test_packing.py)."""
OMNI = ("qwen2_5_omni", "qwen2_5_omni_thinker", "qwen3_omni_moe", "qwen3_omni_moe_thinker")
COUNTS_TOKENS = ("dbrx", "ernie4_5_moe", "granitemoe", "jamba", "jetmoe", "llama4", "mixtral", "olmoe", "phimoe",
                 "qwen2_moe", "qwen3_moe")  # fmt: skip
"""Types for which `moe_aux_loss_coef` makes transformers compute the loss (model/model_utils/moe.py configure_moe)."""
RESETS_STATES = ("qwen3_5", "qwen3_5_moe")
"""Types whose linear layers LLaMA-Factory makes begin anew at each sample, with `fa2` (model/patcher.py
patch_qwen3_5_forward)."""


def _packs(job: Job) -> bool:
    return job.training.stage == "sft" and (job.training.packing or bool(job.extra.get("neat_packing")))


def _packs_neatly(job: Job) -> bool:
    return job.training.stage == "sft" and bool(job.extra.get("neat_packing"))


def _not_neat(job: Job) -> dict[str, object]:
    """Return the edit that switches packing off: without `neat_packing` alone, attention would cross samples."""
    others = {key: value for key, value in job.extra.items() if key != "neat_packing"}
    return {"training.packing": False, "extra": others}


def _single(job: Job) -> dict[str, object]:
    """Return the edit to micro-batches of one pack that keeps the global batch."""
    size = job.training.micro_batch_size
    if size == 1:
        return {}
    edit: dict[str, object] = {"training.micro_batch_size": 1}
    if job.training.global_batch_size is None:
        edit["training.gradient_accumulation_steps"] = job.accumulation * size
    return edit


@rule(scopes.llamafactory_trainer)
def packs_need_no_padding(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """data/processor/supervised.py makes cutoff_len positions for a pack, and data/collator.py pads its tokens alone to
    a multiple of 8: `The size of tensor a (64) must match the size of tensor b (60)`. main pads the positions, but not
    with FlashAttention 2 (https://github.com/hiyouga/LlamaFactory/pull/10737)."""
    length = job.training.cutoff_len
    if not _packs(job) or length % MULTIPLE == 0 or shape.model_type in OWN_POSITIONS:
        return None
    fitting = max(length // MULTIPLE, 1) * MULTIPLE
    return problem("packs_are_padded", "training.cutoff_len", length=length, multiple=MULTIPLE, fitting=fitting,
                   edit={"training.cutoff_len": fitting})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def neat_packs_stand_alone(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """data/collator.py with FlashAttention 2: `bsz should be 1 for neat packing`. Without flash-attn on the nodes the
    training has a mask instead. With `auto`, Gemma 2 asks for it only where it is installed."""
    size = job.training.micro_batch_size
    if not _packs_neatly(job) or size == 1 or not takes_flash_attention_if_installed(job, shape.model_type):
        return None
    severity: Severity = "error" if asked_of_llamafactory(job) == FLASH_ATTENTION else "warning"
    return problem("neat_packs_are_single", "training.micro_batch_size", severity, size=size, edit=_single(job))


@rule(scopes.llamafactory_trainer)
def neat_packs_have_a_kernel(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """data/collator.py gives all but FlashAttention 2 a mask of all pairs of tokens. transformers' call of a
    FlashAttention kernel reads it as one of tokens (modeling_flash_attention_utils.py _upad_input: `index 18 is out of
    bounds`). That concerns gpt-oss and `fa3`, for which the collator has a FIXME."""
    runs = of_llamafactory(job, shape)
    if not _packs_neatly(job) or runs in ("sdpa", "eager", FLASH_ATTENTION):
        return None
    edit: dict[str, object]
    if shape.model_type == "gpt_oss":  # LLaMA-Factory takes the kernel whatever a job asks for
        case, edit = "kernel", _not_neat(job)
    elif takes_flash_attention(shape, gpu):
        case, edit = "fa3", {"extra": {**job.extra, "flash_attn": "fa2"}, **_single(job)}
    else:
        case, edit = "sdpa", {"extra": {**job.extra, "flash_attn": "sdpa"}}
    return problem("neat_packing_with_kernel", "extra.neat_packing", case=case, model_type=shape.model_type, edit=edit)


@rule(scopes.llamafactory_trainer)
def neat_packs_suit_the_model(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """See MASKS_OF_TOKENS. data/collator.py: `Omni models are not supported for packed sequences for now.`"""
    is_masked = masks_packs(job) and shape.model_type in MASKS_OF_TOKENS
    if not _packs_neatly(job) or not (is_masked or shape.model_type in OMNI):
        return None
    return problem("neat_packing_refused", "extra.neat_packing", model_type=shape.model_type, edit=_not_neat(job))


@rule(scopes.llamafactory_trainer)
def experts_are_balanced_by_tokens(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers 5.6.0 load_balancing_loss_func, e.g. modeling_mixtral.py: `batch_size, sequence_length =
    attention_mask.shape` (`too many values to unpack`)."""
    if not masks_packs(job) or not job.extra.get("moe_aux_loss_coef") or shape.model_type not in COUNTS_TOKENS:
        return None
    others = {key: value for key, value in job.extra.items() if key != "moe_aux_loss_coef"}
    return problem("neat_packing_with_balance", "extra.neat_packing", model_type=shape.model_type,
                   edit={"extra": others})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def states_end_with_a_sample(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The mask and the positions of packs reach attention alone: linear attention, state spaces and short convolutions
    run over the whole pack (small models, tests/engines/test_packing.py)."""
    mixers = [mixer for kind in shape.kinds for mixer in (kind.attention, kind.beside)]
    kinds = (GatedDeltaNet, LightningAttention, StateSpace, ShortConvolution, ConvolvedAttention)
    is_mended = shape.model_type in RESETS_STATES and asked_of_llamafactory(job) == FLASH_ATTENTION
    if not _packs_neatly(job) or is_mended or not any(isinstance(mixer, kinds) for mixer in mixers):
        return None
    if shape.model_type in MASKS_OF_TOKENS and masks_packs(job):
        return None
    return problem("neat_packing_leaks", "extra.neat_packing", "warning", model_type=shape.model_type,
                   edit=_not_neat(job))  # fmt: skip


@rule(scopes.llamafactory_trainer)
def packs_keep_sliding_windows(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers 5.6.0 masking_utils.py _preprocess_mask_arguments returns a mask of all pairs as it is, for sliding
    layers too, so their tokens see the whole sample."""
    windows = [kind.attention.window for kind in shape.kinds if isinstance(kind.attention, FullAttention)]
    narrowest = min((window for window in windows if window), default=0)
    if not masks_packs(job) or not narrowest or narrowest >= job.training.cutoff_len:
        return None
    if of_llamafactory(job, shape) not in ("sdpa", "eager"):
        return None
    return problem("neat_packing_without_windows", "extra.neat_packing", "warning", model_type=shape.model_type,
                   window=narrowest, length=job.training.cutoff_len, edit=_not_neat(job))  # fmt: skip

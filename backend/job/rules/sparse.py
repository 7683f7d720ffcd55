"""Rules for sparse attention, whose keys an indexer chooses, on the Hugging Face engines."""

from backend.job.attention import stores_scores
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar

RULES: list[BoundRule] = []
rule = registrar(RULES)

INDEXER_MODULES = ("wq_b", "wk", "weights_proj")
BLOCK_INDEXER_MODULES = ("index_qk_proj",)
BLOCK_TARGETS = (
    "q_proj,k_proj,v_proj,o_proj,in_proj_qkv,in_proj_z,in_proj_b,in_proj_a,out_proj,gate_proj,up_proj,down_proj"
)
"""The linear layers of Qwen4's attention and shared experts (transformers 5.19 modeling_qwen4_exp.py)."""
HEAD_INDEXER_MODULES = ("q_proj", "k_proj")
"""Linear layers of MiniMax-M3's indexer, which are also names of layers of the attention."""
HEAD_TARGETS = "v_proj,o_proj,gate_up_proj,down_proj"
"""Those that no layer of the indexer shares a name with (transformers 5.19 modeling_minimax_m3_vl.py)."""
SPARSE_TARGETS = "q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj,gate_proj,up_proj,down_proj"
"""The linear layers of DeepSeek-V3.2 and GLM-5 outside the indexer (transformers 5.19 modeling_deepseek_v32.py)."""
ENTRY_INDEXER_MODULES = ("q_b_proj", "kv_proj", "gate_proj", "weights_proj")
"""Linear layers of DeepSeek-V4's indexer; the first three are also names of layers outside it."""
GROUPED = "o_a_proj"
ENTRY_TARGETS = "q_a_proj,o_b_proj,up_proj,down_proj"
"""Those that no layer of the indexer shares a name with (transformers 5.19 modeling_deepseek_v4.py). For
`o_a_proj` see adapters_are_not_on_grouped_rows."""
GATED_TARGETS = "q_a_proj,q_gate_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj,gate_proj,up_proj,down_proj,fc1,fc2"
"""The same of A.X K2 (5.19 modeling_axk2.py)."""
SEE_LATER_TOKENS = ("glm_moe_dsa",)
"""Types whose class in transformers 5.6 is not causal with SDPA."""


@rule(scopes.hugging_face)
def adapters_are_not_on_an_indexer(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers decorates the indexer with `torch.no_grad` (modeling_glm_moe_dsa.py of 5.6 and 5.19;
    tests/engines/test_sparse_attention.py). DDP raises in the second step, as in adapters.py adapters_are_trained."""
    training = job.training
    if training.method not in ("lora", "qlora") or not shape.has_indexer:
        return None
    modules, usual = _modules(shape)
    names = [name.strip() for name in training.lora.targets.split(",")]
    if shape.is_compressed and "all" in names:
        # adapters_are_not_on_grouped_rows refuses it with the same button.
        return None
    idle = [name for name in modules if {name, "all"} & {*names}]
    if not idle:
        return None
    kept = ",".join(name for name in names if name not in (*modules, "all")) or usual
    return problem("adapters_on_indexer", "training.lora.targets", "warning", model_type=shape.model_type,
                   modules=", ".join(idle), edit={"training.lora.targets": kept})  # fmt: skip


@rule(scopes.hugging_face)
def adapters_are_not_on_grouped_rows(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Of DeepSeek-V4's `o_a_proj` each group of heads has rows of its own. A step of a small model with an adapter
    there (transformers 5.19, peft 0.18.1 tuners/lora/layer.py) ends with `The size of tensor a (64) must match the
    size of tensor b (128)`."""
    training = job.training
    names = [name.strip() for name in training.lora.targets.split(",")]
    if training.method not in ("lora", "qlora") or not shape.is_compressed or not {"all", GROUPED} & {*names}:
        return None
    kept = ",".join(name for name in names if name not in (*ENTRY_INDEXER_MODULES, GROUPED, "all")) or ENTRY_TARGETS
    return problem("adapters_on_grouped_rows", "training.lora.targets", model_type=shape.model_type, module=GROUPED,
                   edit={"training.lora.targets": kept})  # fmt: skip


def _modules(shape: ModelShape) -> tuple[tuple[str, ...], str]:
    """Return the linear layers of the model's indexer, and those that may have adapters."""
    if shape.is_compressed:
        return ENTRY_INDEXER_MODULES, ENTRY_TARGETS
    if shape.masks_heads:
        return HEAD_INDEXER_MODULES, HEAD_TARGETS
    if not shape.mla:
        return BLOCK_INDEXER_MODULES, BLOCK_TARGETS
    return INDEXER_MODULES, GATED_TARGETS if shape.mla.gate == "query" else SPARSE_TARGETS


@rule(scopes.hugging_face)
def an_indexer_is_trained(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers decorates the indexer with `torch.no_grad` (modeling_deepseek_v32.py of 5.19), or the indexer only
    returns the numbers of keys (modeling_qwen4_exp.py, modeling_deepseek_v4.py, modeling_minimax_m3_vl.py;
    tests/engines/test_sparse_attention.py). The Trainer tells DDP that a model with checkpoints uses all parameters
    (5.6.0 trainer.py, find_unused_parameters)."""
    if not shape.has_indexer or job.training.method != "full":
        return None
    edit: dict[str, object] = {"training.method": "lora", "training.lora.targets": _modules(shape)[1]}
    return problem("indexer_not_trained", "training.method", "warning", model_type=shape.model_type, edit=edit)


@rule(scopes.llamafactory_trainer)
def tokens_see_only_those_before(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers 5.6.0 and 5.8.0 modeling_glm_moe_dsa.py: with SDPA the causal mask is absent, or it is a mask of
    truth values that is added to one of numbers. So a later token changes the outputs of those before it. 5.19.0 has
    the fix, https://github.com/huggingface/transformers/pull/48363 (tests/engines/test_sparse_attention.py)."""
    if shape.model_type not in SEE_LATER_TOKENS or stores_scores(job, shape):
        return None
    return problem("sees_later_tokens", "engine", model_type=shape.model_type,
                   edit={"extra": {**job.extra, "flash_attn": "disabled"}})  # fmt: skip

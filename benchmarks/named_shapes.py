"""Model of a timed row: a GPT by its sizes, llm-foundry's MPT by name, others by published_shape."""

from collections.abc import Mapping
from typing import Any

from backend.job.model import ModelShape, parse_model
from benchmarks.habits import Habits
from benchmarks.shapes import published_shape

_MPT = {
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16), "3b": (2560, 32, 20),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56), "70b": (8192, 80, 64),
}  # fmt: skip
"""Hidden size, layers and heads of llm-foundry's models: scripts/train/yamls/pretrain/mpt-*.yaml."""


def named_shape(row: Mapping[str, Any], habits: Habits) -> ModelShape:
    arch = row.get("model_arch")
    arch = dict(arch) if isinstance(arch, Mapping) else {}
    name = str(row.get("model") or "").lower()
    if name.startswith("mpt-") and name[4:] in _MPT:
        hidden, layers, heads = _MPT[name[4:]]
        arch = {"hidden": hidden, "layers": layers, "heads": heads, "vocab": 50368}
    if habits.gpt and {"hidden", "layers", "heads"} <= arch.keys():
        return parse_model(
            {
                "hidden_size": arch["hidden"],
                "intermediate_size": arch.get("ffn") or 4 * arch["hidden"],
                "num_hidden_layers": arch["layers"],
                "num_attention_heads": arch["heads"],
                "num_key_value_heads": arch.get("kv") or arch["heads"],
                "head_dim": arch["hidden"] // arch["heads"],
                "vocab_size": arch.get("vocab") or 51200,
                "mlp_gated": False,
                "tie_word_embeddings": not habits.untied,
            }
        )
    return published_shape({**row, "model": _known_as(str(row.get("model") or ""))})


def _known_as(model: str) -> str:
    """Return the Hugging Face name of a model on the Bridge pages."""
    name = model.lower().replace("_", "-").removesuffix(" (w/o mtp)").removesuffix("-instruct")
    names = {
        "deepseekv3": "deepseek-v3", "qwen3-30b-a3b": "qwen3-30b-a3b", "qwen3-235b-a22b": "qwen3-235b-a22b",
        "llama3-70b": "llama-3.1-70b", "llama3-8b": "llama-3.1-8b", "llama3.1-405b": "llama-3.1-405b",
        "llama3.1-70b": "llama-3.1-70b", "llama-3-70b": "llama-3.1-70b", "llama-3-8b": "llama-3.1-8b",
        "llama2-7b": "llama-2-7b", "gpt oss 120b": "gpt-oss-120b", "gpt oss 20b": "gpt-oss-20b",
    }  # fmt: skip
    return names.get(name, model)

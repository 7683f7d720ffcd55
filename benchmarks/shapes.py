"""Architectures of models in published measurements: from the row, or by name from benchmarks/data/shapes.json."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from backend.job.model import ModelShape, parse_model

DATA = Path(__file__).parent / "data"


class NotModelled(Exception):
    """The row needs something that the estimate does not model, or lacks something that the estimate needs."""


@cache
def _shapes() -> Mapping[str, Mapping[str, Any]]:
    """Return config.json keys by every name that a source gives the model."""
    by_name: dict[str, Mapping[str, Any]] = {}
    for key, entry in json.loads((DATA / "shapes.json").read_text()).items():
        by_name |= {name.split("/")[-1].lower(): entry["hf_config"] for name in (key, *entry["names"])}
    return by_name


def published_shape(row: Mapping[str, Any]) -> ModelShape:
    """Return the model of a row. Raises NotModelled, or ProblemsError if its config.json is refused."""
    if row.get("hf_config"):
        return parse_model(row["hf_config"])
    arch = row.get("model_arch")
    if arch and {"hidden", "layers", "heads", "vocab"} <= arch.keys():
        return parse_model(_plain(arch))
    shapes = _shapes()
    name = row["model"].split("/")[-1].lower().removeprefix("meta-")
    for alias in (name, *(name.removesuffix(tail) for tail in ("-instruct", "-base", "-instruct-2507", "-fp8"))):
        if alias in shapes:
            return parse_model(shapes[alias])
    raise NotModelled("architecture not published or not supported")


def _plain(arch: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        "hidden_size": arch["hidden"],
        "intermediate_size": arch.get("ffn") or arch.get("dense_ffn"),
        "num_hidden_layers": arch["layers"],
        "num_attention_heads": arch["heads"],
        "num_key_value_heads": arch.get("kv") or arch["heads"],
        "vocab_size": arch["vocab"],
        "mlp_gated": not arch.get("gelu"),
        "head_dim": arch.get("head_dim") or arch["hidden"] // arch["heads"],
    }
    names = {
        "experts": "num_experts", "topk": "num_experts_per_tok", "moe_ffn": "moe_intermediate_size",
        "shared_ffn": "shared_expert_intermediate_size", "dense_layers": "first_k_dense_replace",
        "q_lora": "q_lora_rank", "kv_lora": "kv_lora_rank", "qk_head": "qk_nope_head_dim",
        "rope_head": "qk_rope_head_dim", "v_head": "v_head_dim",
    }  # fmt: skip
    if arch.get("tied"):
        plain["tie_word_embeddings"] = True
    return plain | {config_key: arch[published] for published, config_key in names.items() if arch.get(published)}

"""What recipes set and the pages, cards and tables with their results do not print, of FP8 only in the large.

Megatron-Bridge: github.com/NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs/*_workload_base_configs.py of
v0.3.0 (later src/megatron/bridge/perf_recipes/<model>/<gpu>); src/megatron/bridge/recipes/<model>/h100 for the cards.
ModelZoo: github.com/yanring/Megatron-MoE-ModelZoo, best_practice/qwen3 and model_configs/benchmarking.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Switches of one model on one GPU."""

    recompute_modules: tuple[str, ...] = ()
    dispatcher: Literal["alltoall", "deepep", "hybridep"] = "alltoall"
    overlap_expert: bool = False
    fused_router: bool = False
    rope_fused: bool = True
    """Not where Megatron-Bridge's deepseek_v3_bridge.py, which Moonlight uses too, has the last word."""
    graphed: bool = False
    """CUDA graphs of the router and what precedes the exchange, where they fit of the attention too."""


NONE = Recipe()
_TUNED = Recipe(fused_router=True)
_HYBRID = replace(_TUNED, dispatcher="hybridep")
_GRAPHED = replace(_HYBRID, graphed=True)
_WHOLE = replace(_GRAPHED, overlap_expert=True)
# (source, model, substring of the GPU) -> recipe; the first that fits.
_RECIPES: tuple[tuple[str, str, str, Recipe], ...] = (
    ("Megatron-Bridge", "gpt oss 120b", "B300", replace(_TUNED, graphed=True)),
    ("Megatron-Bridge", "gpt oss 120b", "", replace(_TUNED, recompute_modules=("layernorm", "moe_act"))),
    ("Megatron-Bridge", "deepseekv3 (w/o mtp)", "GB200", replace(_GRAPHED, recompute_modules=("mla_up_proj",))),
    ("Megatron-Bridge", "deepseekv3 (w/o mtp)", "GB300", replace(_GRAPHED, recompute_modules=("moe_act",))),
    ("Megatron-Bridge", "qwen3_235b_a22b", "GB", _GRAPHED),
    ("Megatron-Bridge", "qwen3-30b-a3b", "H100", replace(_GRAPHED, overlap_expert=True)),
    ("Megatron-Bridge", "moonlight-16b-a3b", "H100", replace(_HYBRID, overlap_expert=True, rope_fused=False)),
    ("ModelZoo", "qwen3-235b-a22b", "GB200", _GRAPHED),
    ("ModelZoo Qwen3 long context", "qwen3-235b-a22b", "H100", replace(_TUNED, dispatcher="deepep")),
    ("ModelZoo", "", "", _TUNED),
)


def recipe_of(row: Mapping[str, Any]) -> Recipe:
    """Of a row by its source, model and GPU; what a row says of its recompute stands."""
    source, precision = str(row.get("source")), str(row.get("precision")).lower()
    if "Megatron-Bridge" in source and str(row.get("recompute")).startswith("selective"):
        return Recipe(rope_fused="moonlight" not in str(row.get("model")).lower())
    model, gpu = str(row.get("model")).lower(), str(row.get("hardware")).upper()
    if "Megatron-Bridge" in source and "fp8" in precision:
        # Nearly all of its mixtures of experts in FP8; from the container 26.06 on (tag v0.5.0) those in MXFP8 overlap
        # the exchange on these GPUs and capture the whole iteration.
        release = re.search(r"\b\d\d\.\d\d\b", source)
        later = release is not None and release[0] >= "26.06" and "mx" in precision
        return _WHOLE if later and ("GB" in gpu or ("B300" in gpu and "30b" in model)) else _HYBRID
    fitting = (
        recipe for name, wanted, where, recipe in _RECIPES if name in source and wanted in ("", model) and where in gpu
    )
    return next(fitting, NONE)

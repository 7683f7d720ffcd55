"""Switches that recipes set but published pages, model cards and tables do not print. FP8 is covered only roughly.

- Megatron-Bridge: github.com/NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs/*_workload_base_configs.py of
  v0.3.0 (later src/megatron/bridge/perf_recipes/<model>/<gpu>). For the model cards:
  src/megatron/bridge/recipes/<model>/h100.
- ModelZoo: github.com/yanring/Megatron-MoE-ModelZoo, best_practice/qwen3 and model_configs/benchmarking.
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
    """False if Megatron-Bridge's deepseek_v3_bridge.py sets it; Moonlight uses that file too."""
    graphed: bool = False
    """CUDA graphs of the router and of what precedes the exchange, and of the attention if they fit."""


NONE = Recipe()
_TUNED = Recipe(fused_router=True)
_HYBRID = replace(_TUNED, dispatcher="hybridep")
_GRAPHED = replace(_HYBRID, graphed=True)
_WHOLE = replace(_GRAPHED, overlap_expert=True)
# (source, model, substring of the GPU) -> recipe; the first match counts.
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
    """Return the recipe of a row by source, model and GPU. The row's own recompute is kept."""
    source, precision = str(row.get("source")), str(row.get("precision")).lower()
    if "Megatron-Bridge" in source and str(row.get("recompute")).startswith("selective"):
        return Recipe(rope_fused="moonlight" not in str(row.get("model")).lower())
    model, gpu = str(row.get("model")).lower(), str(row.get("hardware")).upper()
    if "Megatron-Bridge" in source and "fp8" in precision:
        # Nearly all of its MoE models in FP8 have this recipe. From container 26.06 on (tag v0.5.0), those in MXFP8
        # overlap the exchange on these GPUs and capture the whole iteration.
        release = re.search(r"\b\d\d\.\d\d\b", source)
        later = release is not None and release[0] >= "26.06" and "mx" in precision
        return _WHOLE if later and ("GB" in gpu or ("B300" in gpu and "30b" in model)) else _HYBRID
    fitting = (
        recipe for name, named, part, recipe in _RECIPES if name in source and named in ("", model) and part in gpu
    )
    return next(fitting, NONE)

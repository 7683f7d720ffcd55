"""What Megatron-Bridge's recipes set and its pages and cards do not print, for its 16-bit rows.

From github.com/NVIDIA-NeMo/Megatron-Bridge: scripts/performance/configs/*_workload_base_configs.py of v0.3.0 (later
src/megatron/bridge/perf_recipes/<model>/<gpu>), src/megatron/bridge/recipes/<model>/h100 for the verification cards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Switches of one model on one GPU."""

    recompute_modules: tuple[str, ...] = ()
    dispatcher: Literal["alltoall", "deepep", "hybridep"] = "alltoall"
    overlap_expert: bool = False
    graphed: bool = False
    """CUDA graphs of the router and what precedes the exchange, where they fit of the attention too."""


NONE = Recipe()
_SELECTIVE = Recipe(recompute_modules=("layernorm", "moe_act"))
# (model, substring of the GPU) -> recipe; the first that fits.
_RECIPES: tuple[tuple[str, str, Recipe], ...] = (
    ("gpt oss 120b", "B300", Recipe(graphed=True)),
    ("gpt oss 120b", "", _SELECTIVE),
    ("deepseekv3 (w/o mtp)", "GB200", Recipe(recompute_modules=("mla_up_proj",), dispatcher="hybridep", graphed=True)),
    ("deepseekv3 (w/o mtp)", "GB300", Recipe(recompute_modules=("moe_act",), dispatcher="hybridep", graphed=True)),
    ("qwen3_235b_a22b", "GB", Recipe(dispatcher="hybridep", graphed=True)),
    ("qwen3-30b-a3b", "H100", Recipe(dispatcher="hybridep", overlap_expert=True, graphed=True)),
    ("moonlight-16b-a3b", "H100", Recipe(dispatcher="hybridep", overlap_expert=True)),
)
_FP8 = Recipe(dispatcher="hybridep")
"""Of mixtures of experts in FP8 nearly all."""


def recipe_of(row: Mapping[str, Any]) -> Recipe:
    """Of a row by its model and GPU; a row that says what it recomputes is not a recipe's."""
    if "Megatron-Bridge" not in str(row.get("source")) or str(row.get("recompute")).startswith("selective"):
        return NONE
    if "fp8" in str(row.get("precision")).lower():
        return _FP8
    model, gpu = str(row.get("model")).lower(), str(row.get("hardware")).upper()
    return next((recipe for name, where, recipe in _RECIPES if name == model and where in gpu), NONE)

"""LoRA adapters on Megatron-Core's modules, as mcore-bridge of ms-swift 4 creates them.

A column-parallel projection has a whole A and a B that is split over TP. A row-parallel projection has a split A and a
whole B. Grouped experts have adapters of their own. With sequence parallelism, A of a column-parallel projection keeps
its gathered input. A reads its input through nn.Dropout (mcore_bridge 1.6.5 tuners/lora.py; lora_dropout is 0.05 in
ms-swift's megatron_args.py), which keeps a mask of bytes and returns a copy.
"""

from dataclasses import dataclass
from functools import lru_cache

from backend.estimate.memory.saved_activations import SavedBytes
from backend.estimate.model.adapters import adapted_linears
from backend.estimate.model.chosen_keys import ABSORBED
from backend.estimate.model.layers import LayerKind, VisionLayers
from backend.estimate.model.parameters import Counts
from backend.job.model.operators import Linear

_MODULES = {
    "qkv": "linear_qkv",
    "o": "linear_proj",
    "up": "linear_fc1",
    "expert_up": "linear_fc1",
    "shared_up": "linear_fc1",
    "down": "linear_fc2",
    "expert_down": "linear_fc2",
    "shared_down": "linear_fc2",
    "q": "linear_q_proj",
    "q_down": "linear_q_down_proj",
    "q_up": "linear_q_up_proj",
    "kv_down": "linear_kv_down_proj",
    "kv_up": "linear_kv_up_proj",
    ABSORBED: "linear_kv_up_proj",
    "wq_b": "linear_wq_b",
    "wk": "linear_wk",
    "weights_proj": "linear_weights_proj",
    "eh_proj": "eh_proj",
    "gate_proj": "gate_proj",
}
ROWS = frozenset({"o", "down", "expert_down", "shared_down"})
"""Row-parallel projections."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapters:
    """LoRA on the named Megatron modules, or on `all` but the router and the output layer."""

    rank: int
    targets: str = "all"

    def linears(self, kind: LayerKind) -> tuple[Linear, ...]:
        """Return the projections of a layer that have adapters."""
        names = None if self.targets in ("all", "all-linear") else {name.strip() for name in self.targets.split(",")}
        linears = (
            operator for operator in kind.operators if isinstance(operator, Linear) and operator.name in _MODULES
        )
        return tuple(linear for linear in linears if names is None or _MODULES[linear.name] in names)


@lru_cache(maxsize=1024)
def adapter_counts(kind: LayerKind, adapters: Adapters) -> Counts:
    """Return the parameters that the adapters of one layer add."""
    sums = {"split": 0, "whole": 0, "expert": 0}
    for linear in adapters.linears(kind):
        into, out = adapters.rank * linear.inputs, adapters.rank * linear.outputs
        if linear.share == "expert":
            sums["expert"] += linear.copies * (into + out)
        elif linear.share == "whole":
            sums["whole"] += into + out
        elif linear.name in ROWS:
            sums["split"] += into
            sums["whole"] += out
        else:
            sums["whole"] += into
            sums["split"] += out
    return Counts(**sums)


def tower_adapters(vision: VisionLayers, adapters: Adapters) -> int:
    """Return the parameters of adapters on the blocks of a vision tower, a Hugging Face module that is whole on every
    rank."""
    return sum(
        part.count * adapters.rank * (linear.inputs + outputs)
        for part in vision.blocks
        for linear, outputs in adapted_linears(part.kind, "all")
    )


@lru_cache(maxsize=1024)
def adapter_bytes(kind: LayerKind, adapters: Adapters) -> tuple[float, float, SavedBytes]:
    """Return three values in bytes per token: the outputs of A with the masks of gathered inputs; these inputs, which
    sequence parallelism would otherwise split; and what dropout keeps of all other inputs.

    A copy replaces the input, which the frozen projection does not keep. The attention keeps its own output.
    """
    linears = tuple(each for each in adapters.linears(kind) if not each.untrained and each.name != ABSORBED)
    columns = [linear for linear in linears if linear.share == "split" and linear.name not in ROWS]
    outputs = sum(2.0 * adapters.rank * linear.active for linear in linears) + sum(linear.inputs for linear in columns)
    gathered = sum(2.0 * linear.inputs for linear in columns if linear.after_norm)
    rows = [linear for linear in linears if linear.share == "split" and linear.name in ROWS]
    return (
        outputs,
        gathered,
        SavedBytes(
            whole=sum(linear.inputs for linear in linears if linear.share == "whole"),
            split=sum(linear.inputs * (3 if linear.name == "o" else 1) for linear in rows),
            routed=sum(linear.inputs * linear.active for linear in linears if linear.share == "expert"),
        ),
    )

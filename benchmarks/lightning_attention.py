"""What mcore-bridge's Ling 2.5 holds on every rank, and what a layer with its linear attention keeps.

    .venv-node/bin/python -m benchmarks.lightning_attention

Needs the node environment (torch, transformers, megatron-core, ms-swift). Runs the model on the CPU
(bridge_modules.py). flash-linear-attention needs a GPU: a stand-in saves what its FusedRecurrentFunction saves
(@07815769467e fla/ops/common/fused_recurrent.py). Prints JSON:

- "parameters": {"TP PP EP STAGE": parameters of the first rank of the stage};
- "saved": {"TP": bytes} of the storages that the first layer keeps of TOKENS.

tests/estimate/test_lightning_attention.py holds the answers.
"""

import json
from typing import Any

import torch

from benchmarks.bridge_modules import Kept, models, prepare, rank_parameters
from benchmarks.small_models import LING_2_5

TOKENS, SIZES = 64, (1, 2, 4)
PARALLEL = ((1, 1, 1), (2, 1, 1), (2, 2, 2), (4, 2, 4))
"""(TP, PP, EP)"""


class _Recur(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *operands: torch.Tensor) -> torch.Tensor:
        copies = [each.contiguous() for each in operands]
        out = torch.zeros_like(copies[2], dtype=torch.float32)
        ctx.save_for_backward(*copies, out)
        return out.to(copies[0].dtype)


def saved(tensor: int) -> int:
    """Return the bytes that a layer with linear attention keeps, its input included."""
    [model] = models(LING_2_5, tensor=tensor)
    layer = model.decoder.layers[0]
    entering = torch.randn(TOKENS // tensor, 1, 256, dtype=torch.bfloat16, requires_grad=True) * 1
    with Kept(layer) as kept:
        layer(entering, attention_mask=None, rotary_pos_emb=(None, None))
    return kept.bytes


def main() -> None:
    """Print what is counted as JSON."""
    prepare()
    from mcore_bridge.model.gpts import bailing_hybrid

    bailing_hybrid.fused_recurrent_simple_gla = lambda q, k, v, g, **_options: (_Recur.apply(q, k, v, g), None)
    parameters = {
        f"{tensor} {pipeline} {expert} {stage}": sum(
            rank_parameters(models(LING_2_5, stage, tensor=tensor, pipeline=pipeline, expert=expert))
        )
        for tensor, pipeline, expert in PARALLEL
        for stage in range(pipeline)
    }
    print(json.dumps({"parameters": parameters, "saved": {str(tensor): saved(tensor) for tensor in SIZES}}))


if __name__ == "__main__":
    main()

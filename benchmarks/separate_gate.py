"""What Muse Glimmer's attention saves on ms-swift's Megatron, on mcore-bridge's own module.

    .venv-node/bin/python -m benchmarks.separate_gate

Needs the node environment of `make engines` (torch, megatron-core, ms-swift, a later transformers). Runs the attention
of one layer on the CPU, in torch's fake process group. Stand-ins for Transformer Engine's modules save what those save:
a projection its input, a fused norm its input and output, the core query, key, value, output and the log-sum-exp. As in
the formula of other models, the value is a tensor of its own. One number for each row of a norm, and the fp32 copy of
its weight, do not count.

It prints {"HEADS KEY_HEADS TP TOKENS": bytes} of the storages that a forward pass keeps, without weights.
tests/estimate/test_separate_gate.py holds the answers.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch

from tools.programs import NODE_ENVIRONMENT
from tools.swift_without_gpu import install

HIDDEN, WIDTH = 256, 32
CASES = [(8, 2, 1, 128), (8, 2, 2, 128), (8, 4, 2, 256), (4, 4, 1, 256)]
"""(heads, heads of keys, TP, tokens of a sequence)"""


class _Project(torch.autograd.Function):
    """A projection of the whole sequence, which sequence parallelism gathers from the parts; it saves its own part."""

    @staticmethod
    def forward(ctx: Any, entering: torch.Tensor, weight: torch.Tensor, ranks: int) -> torch.Tensor:
        ctx.save_for_backward(entering, weight)
        return torch.nn.functional.linear(entering.repeat(ranks, 1, 1), weight)


class _Normalise(torch.autograd.Function):
    """A fused norm, which saves its input."""

    @staticmethod
    def forward(ctx: Any, entering: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(entering, weight)
        return entering * weight


class _Attend(torch.autograd.Function):
    """A fused core."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(query)
        ctx.save_for_backward(query, key, value, out, query.new_zeros(query.shape[:3], dtype=torch.float32))
        return out


class _Column(torch.nn.Module):
    ranks = 1

    def __init__(self, inputs: int, outputs: int, **_options: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(outputs // self.ranks, inputs, dtype=torch.bfloat16))

    def forward(self, entering: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Project.apply(entering, self.weight, self.ranks), None


class _NormColumn(_Column):
    def __init__(self, inputs: int, outputs: int, **options: object) -> None:
        super().__init__(inputs, outputs, **options)
        self.layer_norm_weight = torch.nn.Parameter(torch.zeros(inputs, dtype=torch.bfloat16))

    def forward(self, entering: torch.Tensor) -> tuple[torch.Tensor, None]:
        return super().forward(_Normalise.apply(entering, self.layer_norm_weight))


class _Row(torch.nn.Module):
    def __init__(self, inputs: int, outputs: int, **_options: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(outputs, inputs // _Column.ranks, dtype=torch.bfloat16))

    def forward(self, entering: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Project.apply(entering, self.weight, 1), None


class _Core(torch.nn.Module):
    def __init__(self, **_options: object) -> None:
        super().__init__()

    def forward(self, query: Any, key: Any, value: Any, *_arguments: object, **_options: object) -> torch.Tensor:
        return _Attend.apply(query, key, value.clone()).flatten(2)


def attention(heads: int, key_heads: int, tensor: int) -> torch.nn.Module:
    """Return the attention of the first of `tensor` ranks."""
    import torch.distributed as distributed
    from mcore_bridge.model.mm_gpts import muse_glimmer
    from megatron.core import parallel_state
    from megatron.core.transformer import attention as core
    from megatron.core.transformer.attention import SelfAttentionSubmodules
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()
    distributed.init_process_group("fake", rank=0, world_size=tensor, store=FakeStore())
    parallel_state.initialize_model_parallel(tensor, create_gloo_process_groups=False)
    _Column.ranks = tensor
    muse_glimmer.TEColumnParallelLinear = _Column
    # torch's own split in place of Transformer Engine's.
    core.SplitAlongDim = None
    config = TransformerConfig(
        num_layers=2, hidden_size=HIDDEN, num_attention_heads=heads, num_query_groups=key_heads, kv_channels=WIDTH,
        tensor_model_parallel_size=tensor, sequence_parallel=tensor > 1, bf16=True, params_dtype=torch.bfloat16,
        normalization="RMSNorm", layernorm_zero_centered_gamma=True, add_bias_linear=False, attention_dropout=0.0,
    )  # fmt: skip
    text = SimpleNamespace(rms_norm_eps=1e-5, qk_scale_factor=3.87, num_attention_heads=heads)
    config.hf_config = SimpleNamespace(text_config=text)
    parts = SelfAttentionSubmodules(
        linear_qkv=_NormColumn, core_attention=_Core, linear_proj=_Row, q_layernorm=IdentityOp, k_layernorm=IdentityOp
    )
    return muse_glimmer.MuseGlimmerSelfAttention(config, parts, layer_number=1, attn_mask_type=AttnMaskType.causal)


def saved(heads: int, key_heads: int, tensor: int, tokens: int) -> int:
    """Return the bytes that a forward pass of this rank keeps, its input included."""
    module = attention(heads, key_heads, tensor)
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    alive, sizes = [], dict[int, int]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.dim() > 1 and tensor.shape[-1] > 1:
            alive.append(tensor)
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    entering = torch.randn(tokens // tensor, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        alive.append(module(entering, None)[0])
    return sum(sizes.values())


def main() -> None:
    """Print what is counted as JSON."""
    sys.path[1:1] = [str(NODE_ENVIRONMENT / "newer"), str(NODE_ENVIRONMENT / "swift")]
    install()
    torch.Tensor.cuda = lambda tensor, *_a, **_k: tensor
    torch.cuda.current_device = lambda: torch.device("cpu")
    print(json.dumps({" ".join(map(str, case)): saved(*case) for case in CASES}))


if __name__ == "__main__":
    main()

"""Bytes that layers for multi-token prediction add to what a model saves for its backward pass, and the operations that
they add to its forward pass, on real modules.

    .venv-node/bin/python -m benchmarks.mtp_saved

Needs the node environment (torch, megatron-core). It runs the forward pass of small models of Megatron-Core's own
modules on the CPU, in torch's fake process group, and compares a model with MTP layers with one that has as many
decoder layers more. So the bytes of the layers themselves, which Transformer Engine's modules save differently, cancel
out. The answer is [{tensor, sequence_parallel, mtp, bytes, operations}, ...]; indices, masks and losses are left out.
"""

import json
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

HIDDEN, HEADS, VOCABULARY, TOKENS, LAYERS = 256, 4, 1024, 64, 2
CASES = [(1, False, 1), (1, False, 2), (2, True, 1), (2, True, 2)]
"""(TP, sequence parallel, MTP layers)"""


class _SaveInput(torch.autograd.Function):
    """A norm that saves its input, as Transformer Engine's does; torch's own saves more on a CPU."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs * weight


class _Norm(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, inputs: torch.Tensor) -> Any:
        return _SaveInput.apply(inputs, self.weight)


def run_on_cpu() -> None:
    """Replace what Megatron-Core's modules need a GPU for."""
    from megatron.core.transformer import multi_token_prediction, torch_norm

    class Tracker:
        def fork(self, *_arguments: object) -> Any:
            return nullcontext()

    torch_norm.WrappedTorchNorm.__new__ = staticmethod(lambda _cls, config, hidden_size, *_a, **_k: _Norm(hidden_size))
    torch.Tensor.cuda = lambda tensor, *_a, **_k: tensor
    torch.cuda.current_device = lambda: torch.device("cpu")
    multi_token_prediction.tensor_parallel.get_cuda_rng_tracker = lambda *_a: Tracker()
    multi_token_prediction.MTPLossLoggingHelper.save_loss_to_tracker = staticmethod(lambda *_a, **_k: None)


def model(layers: int, mtp: int, tensor: int, *, sequence_parallel: bool) -> torch.nn.Module:
    """Return a model on the first of `tensor` ranks."""
    import torch.distributed as distributed
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()
    distributed.init_process_group("fake", rank=0, world_size=tensor, store=FakeStore())
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor, create_gloo_process_groups=False)
    config = TransformerConfig(
        num_layers=layers, mtp_num_layers=mtp or None, hidden_size=HIDDEN, ffn_hidden_size=2 * HIDDEN,
        num_attention_heads=HEADS, add_bias_linear=False, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, normalization="RMSNorm", hidden_dropout=0.0, attention_dropout=0.0,
        sequence_parallel=sequence_parallel, tensor_model_parallel_size=tensor, bf16=True,
        params_dtype=torch.bfloat16, use_cpu_initialization=True, gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
    )  # fmt: skip
    spec = specs.get_gpt_layer_local_spec(normalization="RMSNorm")
    predictors = specs.get_gpt_mtp_block_spec(config, spec, False) if mtp else None
    return GPTModel(
        config, spec, VOCABULARY, TOKENS, position_embedding_type="rope", mtp_block_spec=predictors
    ).bfloat16()


def counted(layers: int, mtp: int, tensor: int, *, sequence_parallel: bool) -> tuple[int, int]:
    """Return the bytes of the storages that hold saved activations and softmaxes after a forward pass, and the
    operations of this pass."""
    module = model(layers, mtp, tensor, sequence_parallel=sequence_parallel)
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    alive, sizes = [], dict[int, int]()

    def keep(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weights and saved.is_floating_point() and saved.numel() > TOKENS:
            alive.append(saved)
            sizes[storage.data_ptr()] = storage.nbytes()
        return saved

    tokens = torch.randint(0, VOCABULARY // tensor, (1, TOKENS))
    mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).triu(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved), FlopCounterMode(display=False) as counter:
        loss = module(tokens, torch.arange(TOKENS)[None], mask, labels=tokens, loss_mask=torch.ones(1, TOKENS))
        alive.append(loss)
    return sum(sizes.values()), counter.get_total_flops()


def main() -> None:
    """Print the bytes of every case as JSON."""
    run_on_cpu()
    rows = []
    for tensor, sequence_parallel, mtp in CASES:
        more = counted(LAYERS, mtp, tensor, sequence_parallel=sequence_parallel)
        less = counted(LAYERS + mtp, 0, tensor, sequence_parallel=sequence_parallel)
        row = {"tensor": tensor, "sequence_parallel": sequence_parallel, "mtp": mtp}
        rows.append({**row, "bytes": more[0] - less[0], "operations": more[1] - less[1]})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

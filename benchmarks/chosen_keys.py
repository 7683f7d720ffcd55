"""What Megatron-Core's attention over chosen keys saves, needs and moves, on real modules.

    python3.12 -m pip download --no-deps --only-binary :all: megatron-core==0.19.2   (then unzip it into FOLDER)
    .venv-node/bin/python -m benchmarks.chosen_keys FOLDER

Needs the node environment (torch), whose own megatron-core is older. Runs the attention of a small model on the CPU, in
torch's fake process group, and prints JSON:

- "saved": {"HEADS TP CP TOKENS": bytes} of the storages that a forward pass keeps, without weights;
- "squares": {"HEADS INDEXER_HEADS": [peak of forward, peak of backward, bytes moved in forward, in backward]} in bytes
  for each pair of a query and a key;
- "flops": {"HEADS TOKENS": [forward, backward]} as torch counts them.

tests/estimate/test_chosen_keys.py holds the answers.
"""

import json
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.moved_bytes import Moved
from tools.swift_without_gpu import Finder

HIDDEN, QUERY_RANK, LATENT, PLAIN, ROTARY, VALUE, INDEX_DIM, CHOSEN = 256, 64, 32, 32, 16, 32, 32, 16
SAVED = [(4, 1, 1, 128), (8, 1, 1, 256), (8, 2, 1, 128), (8, 2, 1, 256), (8, 1, 2, 128), (8, 2, 2, 128)]
"""(heads, TP, CP, tokens of a sequence)"""
SQUARES = [(4, 2), (8, 2), (4, 16)]
"""(heads, heads of the indexer)"""
LENGTHS = (256, 512, 768)


class _Triton(Finder):
    """Empty classes in place of triton, which a CPU does not have."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return super().find_spec(name, path, target) if name.partition(".")[0] == "triton" else None


class _Live(TorchDispatchMode):
    """The most bytes that storages made inside hold at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.alive: set[int] = set()

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and follow the storages of its outputs."""
        outputs = function(*args, **(kwargs or {}))
        inputs = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if torch.is_tensor(each)}
        for each in tree_leaves(outputs):
            if torch.is_tensor(each) and each.untyped_storage()._cdata not in self.alive | inputs:
                storage = each.untyped_storage()
                self.alive.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        return outputs

    def _forget(self, storage: int, size: int) -> None:
        self.alive.discard(storage)
        self.now -= size


class _SaveInput(torch.autograd.Function):
    """A norm that saves its input, as Transformer Engine's does; torch's own saves more on a CPU."""

    @staticmethod
    def forward(ctx: Any, entering: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(entering, weight)
        return entering * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        entering, weight = ctx.saved_tensors
        return gradient * weight, (gradient * entering).flatten(0, -2).sum(0)


class _Norm(torch.nn.Module):
    def __init__(self, hidden_size: int, **_options: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=torch.bfloat16))

    def forward(self, entering: torch.Tensor) -> Any:
        return _SaveInput.apply(entering, self.weight)


class _ShiftedNorm(_Norm):
    def __init__(self, hidden_size: int, **options: object) -> None:
        super().__init__(hidden_size, **options)
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=torch.bfloat16))


class _Whole(torch.nn.Module):
    """A projection that every TP rank holds whole."""

    def __init__(self, inputs: int, outputs: int, **_options: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(0.02 * torch.randn(outputs, inputs, dtype=torch.bfloat16))

    def forward(self, entering: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.linear(entering, self.weight), None


def attention(heads: int, *, tensor: int = 1, context: int = 1, index_heads: int = 8) -> torch.nn.Module:
    """Return the attention of a layer on the first of `tensor` x `context` ranks."""
    import torch.distributed as distributed
    from megatron.core import parallel_state
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt.experimental_attention_variant_module_specs import get_dsa_module_spec_for_backend
    from megatron.core.transformer.experimental_attention_variant import absorbed_mla
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import MLATransformerConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    class Provider(LocalSpecProvider):
        def linear(self) -> type:
            return _Whole

        def layer_norm(self, rms_norm: bool = False, **_options: object) -> type:
            return _Norm if rms_norm else _ShiftedNorm

    absorbed_mla.TELinear = _Whole
    if distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()
    distributed.init_process_group("fake", rank=0, world_size=tensor * context, store=FakeStore())
    sizes = {"tensor_model_parallel_size": tensor, "context_parallel_size": context}
    parallel_state.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
    config = MLATransformerConfig(
        num_layers=2, hidden_size=HIDDEN, ffn_hidden_size=HIDDEN, num_attention_heads=heads, q_lora_rank=QUERY_RANK,
        kv_lora_rank=LATENT, qk_head_dim=PLAIN, qk_pos_emb_head_dim=ROTARY, v_head_dim=VALUE, qk_layernorm=True,
        experimental_attention_variant="dsa", dsa_indexer_n_heads=index_heads, dsa_indexer_head_dim=INDEX_DIM,
        # The rotation needs a CUDA library, and saves nothing.
        dsa_indexer_topk=CHOSEN, dsa_indexer_loss_coeff=0.0, dsa_indexer_rotate_activation=False, rope_type="rope",
        normalization="RMSNorm", add_bias_linear=False, apply_rope_fusion=False, sequence_parallel=tensor > 1,
        bf16=True, params_dtype=torch.bfloat16, use_cpu_initialization=True, gradient_accumulation_fusion=False,
        cp_comm_type="allgather", **sizes,
    )  # fmt: skip
    spec = get_dsa_module_spec_for_backend(config, Provider())
    return build_module(spec, config=config, layer_number=1, cp_comm_type="allgather")


def inputs(tokens: int) -> torch.Tensor:
    """Return the input of a layer."""
    return torch.randn(tokens, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)


def saved(heads: int, tensor: int, context: int, tokens: int) -> int:
    """Return the bytes that a forward pass of this rank keeps, its input included."""
    module = attention(heads, tensor=tensor, context=context)
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    alive, sizes = [], dict[int, int]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            alive.append(tensor)
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        alive.append(module(inputs(tokens // tensor // context), None)[0])
    return sum(sizes.values())


def work(heads: int, index_heads: int, tokens: int) -> list[float]:
    """Return the peaks of both passes, and the bytes that they move."""
    peaks, moved = [], []
    for mode, amounts in ((_Live, peaks), (Moved, moved)):
        module, entering = attention(heads, index_heads=index_heads), inputs(tokens)
        with mode() as forward:
            output = module(entering, None)[0]
            amounts.append(forward.peak if mode is _Live else forward.total)
            gradient = torch.ones_like(output)
            if mode is _Live:
                forward.peak = forward.now
            else:
                forward.total = 0.0
            output.backward(gradient)
            amounts.append(forward.peak if mode is _Live else forward.total)
    return [*peaks, *moved]


def square(measure: Callable[[int], list[float]]) -> list[int]:
    """Return the coefficients of the square of the length, from three lengths at equal distances."""
    first, second, third = (np.array(measure(length)) for length in LENGTHS)
    step = LENGTHS[1] - LENGTHS[0]
    return [round(each) for each in (third - 2 * second + first) / (2 * step**2)]


def flops(heads: int, tokens: int) -> list[int]:
    """Return the operations of both passes."""
    module, entering = attention(heads), inputs(tokens)
    with FlopCounterMode(display=False) as forward:
        output = module(entering, None)[0]
    with FlopCounterMode(display=False) as backward:
        output.backward(torch.ones_like(output))
    return [forward.get_total_flops(), backward.get_total_flops()]


def main() -> None:
    """Print what is counted as JSON."""
    sys.meta_path.insert(0, _Triton())
    sys.path.insert(0, sys.argv[1])
    torch.Tensor.cuda = lambda tensor, *_a, **_k: tensor
    torch.cuda.current_device = lambda: torch.device("cpu")
    plain = torch.tensor
    torch.tensor = lambda *values, pin_memory=False, **options: plain(*values, **options)
    answer = {
        "saved": {" ".join(map(str, case)): saved(*case) for case in SAVED},
        "squares": {f"{heads} {index}": square(lambda n, h=heads, i=index: work(h, i, n)) for heads, index in SQUARES},
        "flops": {f"{heads} 128": flops(heads, 128) for heads in (4, 8)},
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

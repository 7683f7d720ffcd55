"""The models that mcore-bridge builds, on the CPU, with stand-ins for Transformer Engine's modules.

The stand-ins have the weights of the modules that they replace, and save what those save: a projection its input (its
own part of it under sequence parallelism), a fused norm its input, a fused core of attention its operands, its output
and one number for each row. torch's fake process group stands for the other ranks.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch._dynamo

from tools.programs import NODE_ENVIRONMENT
from tools.swift_without_gpu import install


class _Project(torch.autograd.Function):
    """A projection, which saves its input. `ranks`: parts of the sequence that it gathers before."""

    @staticmethod
    def forward(ctx: Any, entering: torch.Tensor, weight: torch.Tensor, ranks: int) -> torch.Tensor:
        ctx.save_for_backward(entering, weight)
        whole = entering.repeat(ranks, *[1] * (entering.dim() - 1)) if ranks > 1 else entering
        return torch.nn.functional.linear(whole, weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        entering, weight = ctx.saved_tensors
        return gradient @ weight, gradient.flatten(0, -2).T @ entering.flatten(0, -2), None


class _Normalise(torch.autograd.Function):
    """A fused norm, which saves its input, copied if it is a view of a wider tensor."""

    @staticmethod
    def forward(ctx: Any, entering: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        entering = entering.contiguous()
        ctx.save_for_backward(entering, weight)
        return entering * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        entering, weight = ctx.saved_tensors
        return gradient * weight, (gradient * entering).flatten(0, -2).sum(0)


class _Ignored:
    def save_for_backward(self, *_tensors: torch.Tensor) -> None:
        """Save nothing."""


class _Attend(torch.autograd.Function):
    """A fused core of attention. It computes something else, of which every key and value has a gradient."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = query.mean(-1, keepdim=True) * (key.mean() + value.mean()) + query.new_zeros(value.shape[-1])
        ctx.save_for_backward(query, key, value, out, query.new_zeros(query.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value, *_ = ctx.saved_tensors
        with torch.enable_grad():
            copies = [each.detach().requires_grad_() for each in (query, key, value)]
            out = _Attend.forward(_Ignored(), *copies)
        return torch.autograd.grad(out, copies, gradient)


def _weight(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(0.1 * torch.randn(*shape, dtype=torch.bfloat16))


class _Linear(torch.nn.Module):
    def __init__(self, input_size: int, output_size: int, *, config: Any, bias: bool = False, **options: Any) -> None:
        super().__init__()
        is_expert = options.get("is_expert")
        self.ranks = config.expert_tensor_parallel_size if is_expert else config.tensor_model_parallel_size
        self.gathers = self.ranks if config.sequence_parallel and not is_expert else 1
        self.weight, self.bias = self.weights(input_size, output_size, bias)
        if is_expert and config.expert_model_parallel_size > 1:
            self.weight.allreduce = False

    def weights(self, inputs: int, outputs: int, bias: bool) -> tuple[torch.nn.Parameter, torch.nn.Parameter | None]:
        return _weight(outputs, inputs), _weight(outputs) if bias else None

    def forward(self, entering: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Project.apply(entering, self.weight, 1), None


class _Column(_Linear):
    def weights(self, inputs: int, outputs: int, bias: bool) -> tuple[torch.nn.Parameter, torch.nn.Parameter | None]:
        return super().weights(inputs, outputs // self.ranks, bias)

    def forward(self, entering: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Project.apply(entering, self.weight, self.gathers), None


class _NormColumn(_Column):
    def __init__(self, input_size: int, output_size: int, **options: Any) -> None:
        super().__init__(input_size, output_size, **options)
        self.layer_norm_weight = _weight(input_size)

    def forward(self, entering: torch.Tensor) -> tuple[torch.Tensor, None]:
        return super().forward(_Normalise.apply(entering, self.layer_norm_weight))


class _Row(_Linear):
    def weights(self, inputs: int, outputs: int, bias: bool) -> tuple[torch.nn.Parameter, torch.nn.Parameter | None]:
        return super().weights(inputs // self.ranks, outputs, bias)

    def forward(self, entering: torch.Tensor) -> tuple[torch.Tensor, None]:
        out = _Project.apply(entering, self.weight, 1)
        return out[: len(out) // self.gathers].clone() if self.gathers > 1 else out, None


class _Norm(torch.nn.Module):
    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_options: Any) -> None:
        super().__init__()
        self.weight = _weight(hidden_size)

    def forward(self, entering: torch.Tensor) -> torch.Tensor:
        return _Normalise.apply(entering, self.weight)


class _Core(torch.nn.Module):
    def __init__(self, **_options: Any) -> None:
        super().__init__()

    def forward(self, query: Any, key: Any, value: Any, *_arguments: Any, **_options: Any) -> torch.Tensor:
        return _Attend.apply(query, key, value).flatten(2)


STAND_INS = {
    "TELinear": _Linear, "TEColumnParallelLinear": _Column, "TELayerNormColumnParallelLinear": _NormColumn,
    "TERowParallelLinear": _Row, "TENorm": _Norm, "TEDotProductAttention": _Core, "SplitAlongDim": None,
    "get_cpu_offload_context": lambda *_arguments: (contextlib.nullcontext(), None),
}  # fmt: skip


def prepare(core: str = "", *, newer: bool = False) -> None:
    """Make mcore-bridge importable here. `core`: a folder with another megatron-core than that of the environment;
    `newer`: use the later transformers."""
    folders = [core] * bool(core) + [str(NODE_ENVIRONMENT / "newer")] * newer + [str(NODE_ENVIRONMENT / "swift")]
    sys.path[1:1] = folders
    install()
    # The compiler asks triton, which is not here, for its backends.
    torch._dynamo.config.disable = True
    torch.Tensor.cuda = lambda tensor, *_a, **_k: tensor
    torch.nn.Module.cuda = lambda module, *_a, **_k: module
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core.extensions import transformer_engine

    for name, stand_in in STAND_INS.items():
        setattr(transformer_engine, name, stand_in)
    from mcore_bridge.model.mm_gpts import gemma4
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import attention

    # Without a GPU there are no states of its random numbers.
    random.CudaRNGStatesTracker.fork = lambda *_arguments: contextlib.nullcontext()
    random._get_all_rng_states = lambda: (None, None, None)
    random._set_all_rng_states = lambda *_states: None
    # Tables of rotary positions do not depend on the layers' widths; a rotation keeps nothing else.
    for module in (attention, gemma4):
        module.apply_rotary_pos_emb = lambda entering, *_arguments, **_options: entering


def models(keys: Mapping[str, Any], stage: int = 0, **sizes: int) -> list[torch.nn.Module]:
    """Return the chunks of the model of config.json's keys on the first rank of a pipeline stage. `sizes` are named
    tensor, pipeline, expert, expert_tensor and virtual_pipeline."""
    import torch.distributed as distributed
    from mcore_bridge.config import ModelConfig, hf_to_mcore_config
    from mcore_bridge.model import get_mcore_model
    from mcore_bridge.model.mm_gpts.utils import HuggingFaceVit
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import PretrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    HuggingFaceVit.to = lambda module, *_a, **_k: module
    tensor, pipeline = sizes.get("tensor", 1), sizes.get("pipeline", 1)
    world = max(tensor, sizes.get("expert", 1) * sizes.get("expert_tensor", 1)) * pipeline
    if distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()
    distributed.init_process_group("fake", rank=stage * (world // pipeline), world_size=world, store=FakeStore())
    named = {
        "tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline,
        "virtual_pipeline_model_parallel_size": sizes.get("virtual_pipeline"),
        "expert_model_parallel_size": sizes.get("expert", 1),
        "expert_tensor_parallel_size": sizes.get("expert_tensor", 1),
    }  # fmt: skip
    parallel_state.initialize_model_parallel(**named, create_gloo_process_groups=False)
    known = keys["model_type"] in CONFIG_MAPPING
    hf_config = (CONFIG_MAPPING[keys["model_type"]] if known else PretrainedConfig).from_dict(dict(keys))
    hf_config.model_type = keys["model_type"]
    # ms-swift sets them (4.6.0 model/utils.py).
    text = hf_config.get_text_config()
    hf_config.hidden_size, hf_config.torch_dtype = text.hidden_size, torch.bfloat16
    bridged = hf_to_mcore_config(hf_config)
    config = ModelConfig(**{
        **bridged, **named, "bias_activation_fusion": bridged.get("swiglu", True),
        "sequence_parallel": tensor > 1, "bf16": True,
        "params_dtype": torch.bfloat16, "use_cpu_initialization": True, "perform_initialization": False,
        "variable_seq_lengths": False, "moe_token_dispatcher_type": "allgather", "attention_dropout": 0.0,
        "hidden_dropout": 0.0, "gradient_accumulation_fusion": False, "moe_grouped_gemm": False,
    })  # fmt: skip
    # As Float16Module does.
    return [chunk.bfloat16() for chunk in get_mcore_model(config)]


def rank_parameters(chunks: list[torch.nn.Module]) -> list[int]:
    """Return [dense, expert] parameters. Megatron marks those that data parallelism must not reduce like dense
    weights."""
    counts = [0, 0]
    for parameter in _once(chunks):
        counts[not getattr(parameter, "allreduce", True)] += parameter.numel()
    return counts


def _once(chunks: list[torch.nn.Module]) -> Iterator[torch.nn.Parameter]:
    for chunk in chunks:
        yield from chunk.parameters()


class Kept:
    """A context that follows the storages which autograd keeps. It leaves out weights, numbers of tokens and one
    number for each row."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._weights = {each.untyped_storage().data_ptr() for each in (*module.parameters(), *module.buffers())}
        self._alive: list[torch.Tensor] = []
        self.sizes: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def __enter__(self) -> "Kept":
        self._hooks.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._hooks.__exit__(*problem)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        is_wide = tensor.is_floating_point() and tensor.dim() > 1 and tensor.shape[-1] > 1
        if is_wide and storage.data_ptr() not in self._weights:
            self._alive.append(tensor)
            self.sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def bytes(self) -> int:
        """Return the bytes of all storages."""
        return sum(self.sizes.values())

"""Megatron-Core on CPU ranks. The CPU answers its calls of torch.cuda; the arithmetic does not change.

For tests of the real launch path, with megatron-core 0.16.1 and mcore_adapter 0.10.0.dev0: tensor, pipeline, expert and
data parallelism, checkpoints, and sequence parallelism with patch_norms. Megatron's virtual pipeline needs real GPUs.
"""

import builtins
import contextlib
import copy
import types

import torch

MEMORY = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
SILENT = ("_lazy_init", "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "manual_seed_all")
FACTORIES = (
    *("tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "linspace", "rand", "randn"),
    *("zeros_like", "ones_like", "empty_like", "full_like"),
)
TYPES = ("FloatTensor", "HalfTensor", "BFloat16Tensor", "IntTensor", "LongTensor", "DoubleTensor")


class Ordered:
    """A stand-in for a stream or an event. Work on a CPU is always in order and complete."""

    def __init__(self, *arguments, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def __getattr__(self, name):
        return lambda *arguments, **options: self


def patch():
    _patch_device()
    _patch_random_numbers()
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _patch_tensors()
    _patch_exchange()
    _keep_validation_of_saved_plans()
    # moe_utils.py names it but defines it only if Transformer Engine is installed.
    builtins.te_general_gemm = None


def _keep_validation_of_saved_plans():
    """Keep torch's own _validate_global_plan, which returns a list since torch 2.12.

    mcore_adapter 0.10.0.dev0 replaces it by a function that returns a switch (patcher.py): every distributed save then
    ends with a TypeError.
    """
    from torch.distributed.checkpoint import default_planner

    class Planner(types.ModuleType):
        def __setattr__(self, name, value):
            if name != "_validate_global_plan":
                super().__setattr__(name, value)

    default_planner.__class__ = Planner


def patch_norms():
    """Mark the weights of Megatron's plain norm, so that it allows sequence parallelism.

    Its fused norms set the same mark: Megatron adds up the gradients of the ranks, each of a part of the sequence.
    """
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    make = WrappedTorchNorm.__new__

    def make_marked(cls, config, *arguments, **options):
        plain = copy.copy(config)
        plain.sequence_parallel = False
        # torch's norm would have fp32 weights among 16-bit ones. The distributed optimizer of megatron-core 0.16.1 then
        # takes the state of another weight at its first save, and asserts its shape. Transformer Engine's norm has 16
        # bits.
        norm = make(cls, plain, *arguments, **options).to(config.params_dtype)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    WrappedTorchNorm.__new__ = make_marked


def patch_resume():
    """Let the distributed optimizer resume with torch's Adam. Transformer Engine's Adam needs none of this.

    megatron-core 0.16.1 asserts one step number in the states before it makes them. It then gives all weights one
    tensor as their step, and overwrites that with the step of the dummy values (docs/upstream-megatron-core.md).
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    describe = DistributedOptimizer.sharded_state_dict

    def sharded_state_dict(self, model_state, is_loading=False, *arguments, **options):
        if is_loading:
            self._init_optimizer_states_with_dummy_values()
        return describe(self, model_state, is_loading, *arguments, **options)

    copy_states = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_states(self, model_param, tensors):
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        state["step"] = state["step"].clone()
        copy_states(self, model_param, {**tensors, "step": state["step"]})

    DistributedOptimizer.sharded_state_dict = sharded_state_dict
    DistributedOptimizer._set_main_param_and_optimizer_states = set_states


def _patch_device():
    cuda = torch.cuda
    for name in SILENT:
        setattr(cuda, name, _answer(None))
    for name in MEMORY:
        setattr(cuda, name, _answer(0))
    cuda.current_device = _answer(torch.device("cpu"))
    cuda.get_device_capability = _answer((8, 0))
    cuda.get_device_name = _answer("cpu")
    properties = types.SimpleNamespace(major=8, minor=0, multi_processor_count=1, total_memory=1 << 36, name="cpu")
    cuda.get_device_properties = _answer(properties)
    cuda.Stream = cuda.Event = Ordered
    cuda.current_stream = cuda.default_stream = _answer(Ordered())
    cuda.stream = lambda stream: contextlib.nullcontext()
    for name in TYPES:
        setattr(cuda, name, getattr(torch, name))


def _patch_random_numbers():
    def get_state(*arguments, **options):
        return torch.get_rng_state()

    def set_state(state, *arguments, **options):
        torch.set_rng_state(state)

    for module in (torch.cuda, torch.cuda.random, torch.cpu):
        module.get_rng_state, module.set_rng_state = get_state, set_state
        module.manual_seed = _answer(None)


def _patch_tensors():
    to, kind = torch.Tensor.to, torch.Tensor.type

    def to_cpu(self, *arguments, **options):
        arguments = [
            _device(argument) if isinstance(argument, str | torch.device) else argument for argument in arguments
        ]
        if "device" in options:
            options["device"] = _device(options["device"])
        return to(self, *arguments, **options)

    def type_as_on_gpu(self, *arguments, **options):
        """Return the name of the type on a GPU, which the optimizer compares."""
        if arguments or options:
            return kind(self, *arguments, **options)
        return kind(self).replace("torch.", "torch.cuda.")

    def stay(self, *arguments, **options):
        return self

    torch.Tensor.to, torch.Tensor.type = to_cpu, type_as_on_gpu
    torch.Tensor.cuda = torch.nn.Module.cuda = stay


def _patch_exchange():
    """Keep the split sizes of the experts' dispatcher as tensors. On a GPU it reads them back as lists."""
    exchange = torch.distributed.all_to_all_single

    def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, **options):
        sizes = [size.tolist() if torch.is_tensor(size) else size for size in (output_split_sizes, input_split_sizes)]
        return exchange(output, input, *sizes, **options)

    torch.distributed.all_to_all_single = all_to_all_single


def _answer(value):
    """Return a new function for each name, because dynamo refuses one function with two names."""
    return lambda *arguments, **options: value


def _on_cpu(factory):
    def make(*arguments, **options):
        if "device" in options:
            options["device"] = _device(options["device"])
        return factory(*arguments, **options)

    return make


def _device(device):
    return torch.device("cpu") if device is not None and str(device).startswith("cuda") else device

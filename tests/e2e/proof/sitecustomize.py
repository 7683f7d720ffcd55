"""On PYTHONPATH of a test's ranks: each writes proof.rank<k>.json at the end, saying what it held and with whom.

The run folder is the working directory. The engine runs as it is but for one more callback in transformers' list; for
FSDP, which accelerate drops without a word on CPU ranks, it is also let through.
"""

import json
import os
import sys


def _add_callback():
    import torch
    from transformers import TrainerCallback, trainer

    class Proof(TrainerCallback):
        def __init__(self):
            self.gradients = []

        def on_step_end(self, args, state, control, model=None, **kwargs):
            if "megatron.core" in sys.modules:
                self.gradients.append(_gradients(getattr(model, "models", [model])[0]))

        def on_train_end(self, args, state, control, model=None, **kwargs):
            distributed = torch.distributed
            proof = {
                "ranks": distributed.get_world_size() if distributed.is_initialized() else 1,
                "engine_ranks": args.world_size,
                "groups": _groups(),
                "gradients": self.gradients,
                "weights": _weights(getattr(model, "models", [model])[0]) if self.gradients else {},
                # mcore_adapter's model is a list of chunks, one of them without a virtual pipeline.
                **_held(getattr(model, "models", [model])[0]),
            }
            with open(f"proof.rank{distributed.get_rank()}.json", "w") as file:
                json.dump(proof, file)

    trainer.DEFAULT_CALLBACKS.append(Proof)


def _groups():
    """How many ranks share what, where Megatron says so."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    return {
        "tensor": state.get_tensor_model_parallel_world_size(),
        "pipeline": state.get_pipeline_model_parallel_world_size(),
        "expert": state.get_expert_model_parallel_world_size(),
        "data": state.get_data_parallel_world_size(),
    }


def _gradients(model):
    """The norm of a step's gradient by part of the model, as this rank holds it; Megatron keeps it in a buffer."""
    squares = {}
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "main_grad"):
            part = _part(name)
            squares[part] = squares.get(part, 0.0) + parameter.main_grad.double().square().sum().item()
    return {part: square**0.5 for part, square in squares.items()}


def _weights(model):
    """The sum of the weights by part: equal on ranks that hold the same."""
    sums = {}
    for name, parameter in model.named_parameters():
        sums[_part(name)] = sums.get(_part(name), 0.0) + parameter.detach().double().sum().item()
    return sums


def _part(name):
    parts = {"deepstack_merger": "deep_stack", "merger": "projector", "vision_model": "tower"}
    return next((part for piece, part in parts.items() if piece in name), "language")


def _held(model):
    """Elements of the model, those this rank keeps, a checksum of those that are trained, and their names."""
    total = mine = 0
    checksum = 0.0
    for parameter in _parameters(model):
        whole, part = _sizes(parameter)
        total, mine = total + whole, mine + part.numel()
        # Of what is trained: packed 4-bit weights are no numbers.
        checksum += part.detach().double().sum().item() if parameter.requires_grad else 0.0
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {"elements": total, "kept": mine, "checksum": checksum, "trained": trained}


def _parameters(model):
    """FSDP1 keeps flat parameters, of which the model's own are views."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    units = [unit._flat_param for unit in FullyShardedDataParallel.fsdp_modules(model) if unit._has_params]
    return units or list(model.parameters())


def _sizes(parameter):
    if hasattr(parameter, "ds_numel"):  # DeepSpeed ZeRO-3
        return parameter.ds_numel, parameter.ds_tensor
    if hasattr(parameter, "_unpadded_unsharded_size"):  # FSDP1
        return parameter._unpadded_unsharded_size.numel(), parameter
    if hasattr(parameter, "to_local"):  # FSDP2
        return parameter.numel(), parameter.to_local()
    return parameter.numel(), parameter


def _let_accelerate_shard_on_cpu():
    """accelerate 1.11.0 (state.py) takes FSDP with seven kinds of device only; torch itself shards on CPUs too."""
    from accelerate import state

    begin = state.AcceleratorState.__init__

    def __init__(self, *arguments, **options):
        shared = state.PartialState._shared_state
        if shared.get("distributed_type") is state.DistributedType.MULTI_CPU:
            shared["distributed_type"] = state.DistributedType.MULTI_GPU
        # Makes FSDP of it, there too.
        begin(self, *arguments, **options)

    state.AcceleratorState.__init__ = __init__
    _let_torch_save_on_cpu()


def _let_torch_save_on_cpu():
    """FSDP1 frees each whole parameter after copying it to the CPU, also where that copies nothing."""
    from torch.distributed.fsdp import _state_dict_utils as states

    enter = states._enter_unshard_params_ctx

    def enter_without_copy(module, fsdp_state, **options):
        enter(module, fsdp_state, **{**options, "offload_to_cpu": False})

    states._enter_unshard_params_ctx = enter_without_copy


if os.environ.get("MEGATRON_ON_CPU") == "1":
    import megatron_on_cpu

    megatron_on_cpu.patch()
if "RANK" in os.environ:
    _add_callback()
    if os.environ.get("MEGATRON_ON_CPU") == "1":
        megatron_on_cpu.patch_norms()
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        _let_accelerate_shard_on_cpu()

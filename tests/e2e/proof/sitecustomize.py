"""Hooks for the ranks of a test, on their PYTHONPATH. Each rank writes proof.rank<k>.json at its end.

The file says what the rank held and with which ranks it communicated. The run folder is the working directory. The
engine is unchanged except for one more callback in transformers' list. FSDP, which accelerate silently drops on CPU
ranks, is switched on.
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

        def on_log(self, args, state, control, logs=None, **kwargs):
            logs["proof/step"] = state.global_step

        def on_train_end(self, args, state, control, model=None, **kwargs):
            distributed = torch.distributed
            proof = {
                "ranks": distributed.get_world_size() if distributed.is_initialized() else 1,
                "engine_ranks": args.world_size,
                "groups": _groups(),
                "gradients": self.gradients,
                "weights": _weights(getattr(model, "models", [model])[0]) if self.gradients else {},
                # mcore_adapter's model is a list of chunks. Without a virtual pipeline it has one chunk.
                **_held(getattr(model, "models", [model])[0]),
            }
            with open(f"proof.rank{distributed.get_rank()}.json", "w") as file:
                json.dump(proof, file)

    trainer.DEFAULT_CALLBACKS.append(Proof)
    if _trains_with_swift():
        # ms-swift has its own list of callbacks.
        class Handler(trainer.CallbackHandler):
            def __init__(self, callbacks, *arguments, **options):
                super().__init__([Proof, *callbacks], *arguments, **options)

        trainer.CallbackHandler = Handler


def _trains_with_swift():
    return os.environ.get("MEGABOARD_TRAINER", "").startswith("swift_trainer")


def _groups():
    """Return the sizes of the parallel groups, as Megatron reports them."""
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
    """Return the norm of this rank's gradient by part of the model. Megatron keeps the gradient in a buffer."""
    squares = {}
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "main_grad"):
            part = _part(name)
            squares[part] = squares.get(part, 0.0) + parameter.main_grad.double().square().sum().item()
    return {part: square**0.5 for part, square in squares.items()}


def _weights(model):
    """Return the sum of the weights by part. It is equal on ranks with the same weights."""
    sums = {}
    for name, parameter in model.named_parameters():
        sums[_part(name)] = sums.get(_part(name), 0.0) + parameter.detach().double().sum().item()
    return sums


def _part(name):
    parts = {"deepstack_merger": "deep_stack", "merger": "projector", "vision_model": "tower"}
    return next((part for piece, part in parts.items() if piece in name), "language")


def _held(model):
    """Return the elements of the model, those on this rank, a checksum of the trained ones, and their names."""
    total = mine = 0
    checksum = 0.0
    for parameter in _parameters(model):
        whole, part = _sizes(parameter)
        total, mine = total + whole, mine + part.numel()
        # Only trained weights count: packed 4-bit weights are no numbers.
        checksum += part.detach().double().sum().item() if parameter.requires_grad else 0.0
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {"elements": total, "kept": mine, "checksum": checksum, "trained": trained}


def _parameters(model):
    """Return the parameters. FSDP1 has flat parameters; the model's own are views of them."""
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
    """Let accelerate use FSDP on CPUs. accelerate 1.11.0 (state.py) knows seven other devices; torch itself shards on
    CPUs, too."""
    from accelerate import state

    begin = state.AcceleratorState.__init__

    def __init__(self, *arguments, **options):
        shared = state.PartialState._shared_state
        if shared.get("distributed_type") is state.DistributedType.MULTI_CPU:
            shared["distributed_type"] = state.DistributedType.MULTI_GPU
        # This turns FSDP on for that device, too.
        begin(self, *arguments, **options)

    state.AcceleratorState.__init__ = __init__
    _let_torch_save_on_cpu()


def _let_torch_save_on_cpu():
    """Keep parameters when FSDP1 saves on CPUs: it frees each whole parameter after a copy to the CPU, even if nothing
    was copied."""
    from torch.distributed.fsdp import _state_dict_utils as states

    enter = states._enter_unshard_params_ctx

    def enter_without_copy(module, fsdp_state, **options):
        enter(module, fsdp_state, **{**options, "offload_to_cpu": False})

    states._enter_unshard_params_ctx = enter_without_copy


if os.environ.get("MEGATRON_ON_CPU") == "1":
    import megatron_on_cpu

    megatron_on_cpu.patch()
# DeepSpeed prints a line when it is imported. A rank reads the output of py-cpuinfo's program as JSON.
if "RANK" in os.environ and not any(part.endswith("/cpuinfo.py") for part in sys.orig_argv):
    _add_callback()
    if os.environ.get("MEGATRON_ON_CPU") == "1":
        megatron_on_cpu.patch_norms()
        megatron_on_cpu.patch_resume()
    # ms-swift sets the variable itself, from this file.
    if os.environ.get("ACCELERATE_USE_FSDP") == "true" or (_trains_with_swift() and os.path.exists("fsdp.json")):
        _let_accelerate_shard_on_cpu()

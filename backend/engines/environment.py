"""The environment variables of the ranks."""

from collections.abc import Mapping

from backend.engines.engine import Engine, Target

# torchtitan keeps 20000 entries; ASYNC_ERROR_HANDLING=1 would abort before the record is written
# (https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/utils.py). Torch before 2.9 knows only the
# first and third name; later versions call the first one deprecated.
_FLIGHT_RECORDER = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000",
    "TORCH_FR_BUFFER_SIZE": "20000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
}
# llamafactory-cli sets these for its ranks (LLaMA-Factory 0.9.5 src/llamafactory/launcher.py, OPTIM_TORCH).
_ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1"}


def shared_variables(target: Target, engine: Engine) -> dict[str, str]:
    """Return the variables that are equal on all nodes, without the job's own."""
    variables = {
        # The model and the data are folders on the node: requests to the hub would only add delays and failures.
        "HF_HUB_OFFLINE": "1",
        # This is torchrun's own default; it warns if the variable is not set.
        "OMP_NUM_THREADS": "1",
        # Ranks write to files: with buffering, the last lines of a crash would be lost.
        "PYTHONUNBUFFERED": "1",
    }
    if target.on_cpu:
        # Without it accelerate names the device cpu:0, and torch cannot restore an optimizer to it.
        variables["ACCELERATE_TORCH_DEVICE"] = "cpu"
    else:
        variables |= _FLIGHT_RECORDER | _ALLOCATOR
    return variables | dict(engine.environment(target))


def node_variables(target: Target, *, interface: str | None, folder: str) -> dict[str, str]:
    """Return the variables of one node: the interface towards the master, and the folder of NCCL's flight records."""
    variables: dict[str, str] = {}
    if interface:
        # NCCL reads a name without "=" as a prefix: eth1 would match eth10 too
        # (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
        variables |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    if not target.on_cpu:
        trace = f"{folder}/nccl_trace_rank_"
        variables |= {"TORCH_FR_DUMP_TEMP_FILE": trace, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": trace}
    return variables


def merged(target: Target, *groups: Mapping[str, str]) -> dict[str, str]:
    """Return all variables of a rank by name: first Megaboard's, then the job's."""
    variables: dict[str, str] = {}
    for group in (*groups, target.job.environment):
        variables |= group
    return dict(sorted(variables.items()))

"""GPU memory outside torch's allocator: the CUDA context, and the buffers of every NCCL communicator of a plan.

Megatron-Core has one group for each purpose, and each group has its own buffers. A run of Megatron with TP 2, PP 2 and
DP 2 on 8 H100 had 7 GB in them, and 9.5 GB with experts (https://github.com/verl-project/verl/pull/6408). This module
computes 4 GB.
"""

import numpy as np
from numpy import ndarray

from backend.estimate.array_ops import Number, choose, larger, smaller
from backend.estimate.plan import Plan
from backend.estimate.time.communication import is_single_rank
from backend.job.job import Job

FIRST_GIB = 1.5
"""The CUDA context, libraries, and the communicator of all ranks; assumed."""
PAIR_GIB, GROUP_GIB = 544 / 1024, 688 / 1024
"""Buffers of a communicator of two ranks, and of more ranks: 4 A100 with NVLink
(https://github.com/NVIDIA/nccl/issues/964)."""
PEER_GIB = 3.28e9 / 7 / 2**30
"""Buffers of an all-to-all for each peer in the node: 8 H100 (https://github.com/NVIDIA/nccl/issues/1685). A channel
receives into 10 MiB and sends from 2 (NCCL 2.30 src/transport/p2p.cc), and NVLink has 32 channels
(src/graph/paths.cc)."""
_LINKS_GB_PER_S = 600
"""Bandwidth of the A100's links in both directions. NCCL opens two channels for each link, and two if there is no link
(the same file). Its memory is proportional to the channels (https://github.com/NVIDIA/nccl/issues/986)."""


def non_torch_gib(job: Job, plan: Plan) -> Number:
    """Return the GiB that the job states, or those that its plan needs; sizes of the plan may be arrays."""
    if job.cluster.outside_gib is not None:
        return job.cluster.outside_gib
    if not job.traits.is_megatron:
        return FIRST_GIB
    logs_memory = job.traits.environment == "swift"
    channels = min(1.0, job.cluster.intra_node_gb_per_s / _LINKS_GB_PER_S)
    return FIRST_GIB + channels * groups_gib(plan, gpus_per_node=job.cluster.gpus_per_node, logs_memory=logs_memory)


def groups_gib(plan: Plan, *, gpus_per_node: int, logs_memory: bool = False) -> Number:
    """Return the GiB of the groups of a Megatron plan on GPUs with NVLink, without the group of all ranks.

    The groups are:

    - TP, PP and CP;
    - the copies of the model, once for the loss (mcore_adapter trainer/trainer.py, ms-swift megatron/trainers/base.py)
      and once, with the ranks of CP, for gradients;
    - the ranks that compute the norm of the gradients: all ranks with the distributed optimizer, TP x PP without it
      (megatron-core 0.16.1 optimizer/__init__.py), and TP x PP once more if memory is logged (ms-swift
      megatron/utils/parallel_utils.py);
    - with EP, the exchange of tokens and of their counts (transformer/moe/token_dispatcher.py), and the gradients of
      experts.
    """
    model, copies = plan.tensor * plan.pipeline, plan.data * plan.context
    norm = choose(plan.distributed_optimizer, model * copies, model)
    groups = _gib(plan.tensor) + _gib(plan.pipeline) + _gib(plan.context) + _gib(plan.data) + _gib(copies) + _gib(norm)
    if logs_memory:
        groups = groups + _gib(model)
    if is_single_rank(plan.expert):
        return groups
    of_experts = _exchange_gib(plan, gpus_per_node) + _gib(plan.expert * plan.expert_tensor) + _gib(plan.expert_data)
    return groups + choose(plan.expert > 1, of_experts, 0.0)


def _gib(size: Number) -> Number:
    """Return the GiB of a communicator of this size."""
    if type(size) is ndarray:
        return np.where(size > 2, GROUP_GIB, np.where(size > 1, PAIR_GIB, 0.0))
    return GROUP_GIB if size > 2 else PAIR_GIB if size > 1 else 0.0


def _exchange_gib(plan: Plan, gpus_per_node: int) -> Number:
    """Return the GiB of EP's all-to-all; peers on other nodes share the buffers of one communicator."""
    peers_in_node = larger(1, gpus_per_node // plan.expert_tensor)
    return PEER_GIB * (smaller(plan.expert, peers_in_node) - 1) + choose(plan.expert > peers_in_node, GROUP_GIB, 0.0)

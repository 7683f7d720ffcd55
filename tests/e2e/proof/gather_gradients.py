"""Test of mcore_adapter's gather of image features on two CPU ranks of torchrun: gather_gradients.py TP CP IMAGES.

Rank 0 prints the gradient of three weights as `right` (of one rank) and `got` (the sum over the ranks). Each rank has
every second token of the sequence, as context and sequence parallelism divide it.
"""

import json
import sys

import torch
from mcore_adapter import parallel_functions
from megatron.core import mpu

TOKENS = 2  # Tokens of an image.


def main(tensor, context, images):
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mpu.initialize_model_parallel(tensor_model_parallel_size=tensor, context_parallel_size=context)
    torch.manual_seed(0)
    features, observed = torch.randn(2, images * TOKENS, 3)
    weights = torch.ones(3, requires_grad=True)
    if images < ranks:
        gathered = parallel_functions.encoder_small_batch_size_gather(features * weights)
    else:
        plan = [[(TOKENS, image) for image in range(images) if image % ranks == each] for each in range(ranks)]
        own = torch.cat([features[image * TOKENS : (image + 1) * TOKENS] for _, image in plan[rank]])
        gathered = parallel_functions.encoder_sequence_parallel_gather(own * weights, plan, [TOKENS] * images)
    (gathered * observed)[rank::ranks].sum().backward()
    torch.distributed.all_reduce(weights.grad)
    if rank == 0:
        print(json.dumps({"right": (features * observed).sum(0).tolist(), "got": weights.grad.tolist()}))


main(*map(int, sys.argv[1:]))

"""The gradient that DeepSpeed's ZeRO-2 applies after several micro-batches, with and without offload. A node's Python
runs this file as one rank on CPU.

It prints {"offload": ..., "none": ...}: the change of a weight by one step of SGD with rate 1, for micro-batches whose
gradients are 1, 10, 100 and 1000. Their mean is 277.75.
"""

import json
import os
import sys

import deepspeed
import torch

VALUES = (1.0, 10.0, 100.0, 1000.0)


def step(device: str) -> float:
    """Return the change of the weight."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": len(VALUES),
        # Since 0.19.3 the default is 1.0.
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": device}},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for value in VALUES:
        # transformers divides the loss itself (5.6.0 trainer.py).
        engine.backward(engine(torch.tensor([[value]])).sum() / len(VALUES), scale_wrt_gas=False)
        engine.step()
    return -float(model.weight.detach())


# One rank needs no shared memory, which would be compiled first.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"})
os.environ["MASTER_PORT"] = sys.argv[1]
print("\n" + json.dumps({device if device != "cpu" else "offload": step(device) for device in ("cpu", "none")}))

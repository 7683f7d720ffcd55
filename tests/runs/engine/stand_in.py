"""Code that the stand-ins for torchrun share, here and in the chaos tests."""

import argparse
import json
import time
from typing import TextIO


def torchrun_options() -> argparse.Namespace:
    """Return the arguments of torchrun, and those of its script."""
    parser = argparse.ArgumentParser()
    for name in ("nnodes", "node_rank", "nproc_per_node", "master_port", "max_restarts"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--master_addr", required=True)
    parser.add_argument("entry")
    parser.add_argument("folder")
    return parser.parse_args()


def write_step(steps: TextIO, step: int, total: int, step_s: float = 0.05) -> None:
    """Write a line of a steps file as entry.py writes it."""
    row = {"protocol": 1, "step": step, "total_steps": total, "time": time.time(), "step_s": step_s}
    steps.write(json.dumps(row | {"loss": 5.0 / step, "learning_rate": 1e-4, "grad_norm": 1.0}) + "\n")
    steps.flush()

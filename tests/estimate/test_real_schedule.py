"""The simulated order of passes is the one that the installed megatron-core computes for its interleaved schedule.

Its tables are asked for in the node environment; cheaper tests simulate the order and cannot see an upgrade change it.
"""

import json
import subprocess

import pytest

from backend.estimate.time.simulate import passes
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, needs_node_environment]

CASES = [(2, 2, 4), (4, 2, 4), (4, 2, 8), (4, 3, 16), (8, 4, 8), (8, 2, 32)]
"""(pipeline, virtual, micro-batches)."""

MEGATRON = """
import json, sys
from types import SimpleNamespace as Fake
from megatron.core.pipeline_parallel.schedules import get_pp_rank_microbatches, get_schedule_table

found = []
for pipeline, virtual, micro_batches in json.loads(sys.argv[1]):
    for stage in range(pipeline):
        group = Fake(size=lambda: pipeline, rank=lambda: stage)
        talk = Fake(pp_group=group, virtual_pipeline_model_parallel_size=virtual)
        counts = get_pp_rank_microbatches(micro_batches, virtual, pipeline, p2p_communicator=talk)
        found.append([counts[2], get_schedule_table(micro_batches, virtual, pipeline)])
print(json.dumps(found))
"""


def test_warm_up_and_order_of_chunks_are_megatrons():
    command = [str(NODE_PYTHON), "-W", "ignore", "-c", MEGATRON, json.dumps(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = iter(json.loads(done.stdout.splitlines()[-1]))
    for pipeline, virtual, micro_batches in CASES:
        for stage in range(pipeline):
            warm_up, table = next(answers)
            order = passes(pipeline, virtual, micro_batches, stage)
            forwards = [(order_pass.micro_batch, order_pass.chunk) for order_pass in order if order_pass.is_forward]
            backwards = [
                (order_pass.micro_batch, virtual - 1 - order_pass.chunk)
                for order_pass in order
                if not order_pass.is_forward
            ]
            assert forwards == backwards == [tuple(unit) for unit in table]
            kinds = [order_pass.is_forward for order_pass in order]
            # Then one forward, one backward; all forwards may be warm-up.
            steady = [True, False] * (len(table) - warm_up)
            assert kinds == [True] * warm_up + steady + [False] * warm_up

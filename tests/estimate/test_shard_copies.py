"""Copies between the buffers of sharded engines take time that no token adds to."""

from dataclasses import replace
from itertools import product

import pytest

from backend.estimate import estimate
from backend.estimate.estimate import estimate_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.model.model_layers import model_layers
from backend.estimate.time.efficiency import MEMORY_SHARE, machine_of_job
from backend.estimate.time.step_time import kind_passes
from backend.estimate.time.timing import time_context_of
from backend.job.job import Model
from backend.job.presets import gpus, resolve_model
from benchmarks.small_models import SEEING, TOWER_MODELS
from tests.estimate.cases import job

LLAMA = model_layers(resolve_model(Model(preset="llama-3.1-8b")))
WEIGHTS = LLAMA.count * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + LLAMA.embedding
COPY_S = 2 * 2 * WEIGHTS / (MEMORY_SHARE * gpus()["h100-80g"].hbm_gb_per_s * 1e9)
"""Seconds to read and write all projections in 16 bits."""
MICRO_BATCHES = 8
FSDP_2 = {"engine": "llamafactory-fsdp", "cluster.stack": "tuned", "training.cutoff_len": 8192}


def context_of(*edits, **run):
    """Return the time context and the layers of a job with FSDP 2. `run` holds fields of Execution."""
    edited = job({"model.preset": "llama-3.1-8b"}, FSDP_2, *edits)
    shape, gpu = resolve_model(edited.model), gpus()["h100-80g"]
    memory = estimate_memory(edited, shape, gpu)
    context = time_context_of(edited, shape, machine_of_job(edited, gpu), memory.plan, memory.traits, memory.layers)
    assert context.run.sharding == "fsdp_2"
    # The GPU never waits for the host, so no copy is hidden.
    never_waits = replace(context.efficiency, host_s=0.0)
    return replace(context, efficiency=never_waits, run=replace(context.run, **run)), memory.layers


def copies_s(chosen, context, layers, trained=Trained()):  # noqa: B008 - frozen
    """Return the seconds that copies add to the passes through a unit: forward, and backward with recompute."""
    copied, plain = (
        chosen(kind_passes(layers, replace(context, run=replace(context.run, sharding=sharding)), trained))
        for sharding in ("fsdp_2", None)
    )
    assert min(copied.forward.compute, copied.backward.compute, copied.recomputed.compute) >= 0
    back = copied.backward.compute + copied.recomputed.compute
    return copied.forward.compute - plain.forward.compute, back - plain.backward.compute - plain.recomputed.compute


def copy_s(weights):
    """Return the seconds to read and write weights in 16 bits."""
    return 2 * 2 * weights / (MEMORY_SHARE * gpus()["h100-80g"].hbm_gb_per_s * 1e9)


def parts(engine="llamafactory-fsdp", **values):
    base = {"model__preset": "llama-3.1-8b", "training__images_per_sample": 0, "cluster__stack": "tuned"}
    base |= {"training__cutoff_len": 8192, "parallel__recompute": "none"}
    return estimate(job(**(base | {"engine": engine} | values))).time_s


def test_fsdp_2_copies_gradients_once_a_step_and_fsdp_1_joins_them_in_every_micro_batch():
    """Both reduce once; FSDP 2 also copies weights twice in a micro-batch, FSDP 1 never."""
    first, second = (parts(parallel__fsdp__version=version)["compute"] for version in (1, 2))
    assert second - first == pytest.approx(MICRO_BATCHES * (2 - 1) * COPY_S, rel=0.001)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_weights_that_stay_gathered_save_one_copy_with_and_without_recompute(recompute):
    freed, kept = (
        parts(parallel__recompute=recompute, parallel__fsdp__reshard_after_forward=free) for free in (True, False)
    )
    saved = sum(freed[part] - kept[part] for part in ("compute", "recompute") if part in freed)
    assert saved == pytest.approx(MICRO_BATCHES * COPY_S, rel=0.001)


def test_zero_3_copies_nothing_on_one_gpu():
    """DeepSpeed's NoGatherCoalescedHandle."""
    alone = {"cluster__nodes": 1, "cluster__gpus_per_node": 1}
    one, two = (
        parts(engine="llamafactory-zero3", **{**alone, "cluster__gpus_per_node": gpus_per_node})["compute"]
        for gpus_per_node in (1, 2)
    )
    assert two - one == pytest.approx(2 * MICRO_BATCHES * COPY_S, rel=0.001)


BOTH = (True, False)
UNITS = {
    "layer": (lambda kinds: kinds.kinds[0], (WEIGHTS - LLAMA.embedding) / LLAMA.count),
    "output": (lambda kinds: kinds.head, LLAMA.embedding),
}
"""The layers that full recompute repeats, and the output layer, which nothing repeats."""


@pytest.mark.parametrize(("recompute", "frees", "stops_early"), list(product(("none", "full"), BOTH, BOTH)))
@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_copied_once_for_each_gather(unit, recompute, frees, stops_early):
    """There are two copies, or one if the weights stay gathered."""
    edits = {"parallel.recompute": recompute, "parallel.fsdp.reshard_after_forward": frees}
    chosen, weights = UNITS[unit]
    forward, back = copies_s(chosen, *context_of(edits, stops_early=stops_early))
    once = pytest.approx(copy_s(weights), rel=0.001)
    assert forward == once
    assert back == (once if frees else pytest.approx(0, abs=1e-9))


@pytest.mark.parametrize("frees", BOTH)
def test_recompute_of_every_second_layer_repeats_the_copies_of_half_of_them(frees):
    """torchtitan's selective checkpoints by layer. The other layers are copied in their backward pass."""
    edits = {"parallel.recompute": "full", "parallel.fsdp.reshard_after_forward": frees}
    chosen, weights = UNITS["layer"]
    forward, back = copies_s(chosen, *context_of(edits, stops_early=True, recomputed_layers=0.5))
    once = pytest.approx(copy_s(weights), rel=0.001)
    assert forward == once
    assert back == (once if frees else pytest.approx(0, abs=1e-9))


MODELS = {name: {**SEEING, **TOWER_MODELS}[name] for name in ("mllama", "granite4_vision")}
"""Models with layers that attend to images, and with a projector whose layers full recompute repeats."""


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("model", MODELS)
def test_towers_and_layers_that_attend_to_images_are_copied_as_often_before_the_backward_pass(model, recompute):
    """Full recompute repeats the layers of some projectors, and keys and values of images inside their layer."""
    edits = {"model.preset": None, "model.hf_config": MODELS[model], "parallel.recompute": recompute}
    frozen = {f"training.freeze.{part}": False for part in ("vision_tower", "projector")}
    context, layers = context_of(edits, frozen, {"training.images_per_sample": 8})
    units = [lambda kinds: kinds.tower, *(lambda kinds, i=i: kinds.kinds[i] for i in range(len(layers.kinds)))]
    for place, chosen in enumerate(units):
        forward, back = copies_s(chosen, context, layers)
        assert forward > 0, place
        assert back == pytest.approx(forward, rel=1e-6), place

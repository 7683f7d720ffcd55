"""Properties that every plan must have."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.estimate.memory.megatron import pipeline_memory
from backend.estimate.memory.megatron_layer import Run, layer_cost
from backend.estimate.memory.stage import Trained
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.estimate.time.schedule import in_flight
from backend.job.job import Model
from backend.job.presets import resolve_model
from backend.job.traits import TRAITS

MCA = TRAITS["llamafactory-megatron"].memory
DENSE = model_layers(resolve_model(Model(preset="llama-3.1-8b")))
SPARSE = model_layers(resolve_model(Model(preset="qwen3-30b-a3b")))
VISION = model_layers(resolve_model(Model(preset="qwen3-vl-8b")))
TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace", "peak")

powers = st.sampled_from([1, 2, 4])


@st.composite
def plans(draw):
    pipeline = draw(powers)
    tensor = draw(powers)
    return Plan(
        tensor=tensor,
        pipeline=pipeline,
        virtual_pipeline=draw(st.sampled_from([1, 2])) if pipeline > 1 else 1,
        context=draw(st.sampled_from([1, 2])),
        data=draw(powers),
        sequence_parallel=tensor > 1 and draw(st.booleans()),
        sequence_length=draw(st.sampled_from([1024, 4096])),
        micro_batch=draw(st.sampled_from([1, 2])),
        micro_batches=8,
        distributed_optimizer=draw(st.booleans()),
    )


def states(memory):
    return memory.weights + memory.gradients + memory.optimizer


def worst(layers, plan, measure, trained=Trained()):  # noqa: B008 - frozen
    return max(measure(memory) for memory in pipeline_memory(layers, plan, MCA, trained))


@pytest.mark.parametrize("layers", [DENSE, VISION], ids=["dense", "vision"])
@pytest.mark.parametrize("size", ["tensor", "data", "pipeline", "context"])
@settings(max_examples=25)
@given(plan=plans())
def test_more_ranks_of_any_kind_never_raise_the_states_of_a_rank(layers, size, plan):
    wider = replace(plan, **{size: 2 * getattr(plan, size)})
    assert worst(layers, wider, states) <= worst(layers, plan, states)


@settings(max_examples=25)
@given(plan=plans(), expert=powers)
def test_more_expert_parallel_never_raises_the_states_of_a_rank(plan, expert):
    plan = replace(plan, data=8)
    narrow, wide = (replace(plan, expert=size) for size in (expert, 2 * expert))
    assert worst(SPARSE, wide, states) <= worst(SPARSE, narrow, states)


@pytest.mark.parametrize("layers", [DENSE, SPARSE], ids=["dense", "sparse"])
@settings(max_examples=25)
@given(plan=plans(), modules=st.sets(st.sampled_from(["core_attn", "mlp", "moe", "moe_act", "layernorm"]), min_size=1))
def test_recompute_never_raises_what_is_kept(layers, plan, modules):
    flash = replace(plan, recompute="selective", recompute_modules=tuple(sorted(modules)))
    full = replace(plan, recompute="full")
    peak = worst(layers, plan, lambda memory: memory.activations)
    selective = worst(layers, flash, lambda memory: memory.activations)
    # What one layer revives is alive beside what is kept; it never exceeds what that layer would have kept.
    assert selective <= peak * 1.0001 + _revived(layers, plan)
    assert worst(layers, full, lambda memory: memory.activations) <= peak + _revived(layers, plan)


def _revived(layers, plan):
    kinds = layers.kinds
    return max(layer_cost(kind, plan, MCA, Run(trained=Trained())).saved for kind in kinds)


@settings(max_examples=25)
@given(plan=plans(), tower=st.booleans(), merger=st.booleans(), language=st.booleans())
def test_freezing_never_raises_memory(plan, tower, merger, language):
    plan = replace(plan, images=plan.micro_batch, patches=1764)
    frozen = Trained(language=language, tower=tower, merger=merger)
    assert worst(VISION, plan, lambda memory: memory.peak, frozen) <= worst(VISION, plan, lambda memory: memory.peak)


@settings(max_examples=25)
@given(plan=plans())
def test_the_largest_term_of_any_stage_is_finite_and_positive(plan):
    for memory in pipeline_memory(DENSE, plan, MCA, Trained()):
        assert all(0 <= getattr(memory, term) < 2**50 for term in TERMS)


def test_flash_attention_keeps_no_probabilities():
    plan = Plan(tensor=8, sequence_parallel=True, data=4, sequence_length=4096, micro_batches=8)
    with_it, without = (
        worst(DENSE, replace(plan, attention=kind), lambda memory: memory.activations) for kind in ("fused", "scores")
    )
    assert without - with_it == pytest.approx(32 * 2 * 32 * 4096 * 4096 / 8)


def test_images_are_split_over_ranks_only_when_there_is_one_for_each():
    few = Plan(tensor=4, images=2, patches=1764, sequence_length=4096, micro_batches=8)
    assert few.vision_patches == 2 * 1764
    assert replace(few, images=8).vision_patches == 2 * 1764


def test_the_tower_is_held_for_every_micro_batch_in_flight_in_the_first_chunk():
    plan = Plan(pipeline=2, virtual_pipeline=2, images=1, patches=1764, sequence_length=4096, micro_batches=8)
    with_images = pipeline_memory(VISION, plan, MCA, Trained())[0].activations
    without = pipeline_memory(VISION, replace(plan, images=0), MCA, Trained())[0].activations
    alone = pipeline_memory(VISION, replace(plan, pipeline=1, virtual_pipeline=1), MCA, Trained())[0].activations
    bare = pipeline_memory(VISION, replace(plan, pipeline=1, virtual_pipeline=1, images=0), MCA, Trained())[0]
    assert in_flight(2, 2, 8, 0)[0] == 3
    assert with_images - without == pytest.approx(3 * (alone - bare.activations))

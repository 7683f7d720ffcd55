"""A rule warns of each plan with which mcore_adapter trains the vision parts of a model wrongly."""

from itertools import product

import pytest

from backend.job.mapping import parse_job, with_values
from backend.job.problems import errors
from backend.job.rules import check
from backend.job.rules.vision import FROZEN, TRAINED_WRONGLY

WRONG, DRIFT, CUT = "vision_gradients_wrong", "vision_replicas_drift", "deep_stack_gradients_wrong"
QWEN3_VL, QWEN25_VL, QWEN3_MOE_VL = "qwen3-vl-8b", "qwen2.5-vl-7b", "qwen3-vl-30b-a3b"
PARTS = ("vision_tower", "projector", "language_model")


def job_of(preset, values, gpu="h100-80g"):
    job, problems = parse_job({"cluster": {"gpu": gpu, "nodes": 4, "gpus_per_node": 8}, "model": {"preset": preset}})
    assert not problems
    return with_values(job, values)


def found(preset, values, gpu="h100-80g"):
    return [problem for problem in check(job_of(preset, values, gpu)) if problem.code in TRAINED_WRONGLY]


def codes(preset, values, gpu="h100-80g"):
    return [problem.code for problem in found(preset, values, gpu)]


@pytest.mark.parametrize(
    ("tensor", "context", "sequence"), list(product((1, 2, 4), (1, 2), (True, False))), ids=lambda value: str(value)
)
@pytest.mark.parametrize("preset", [QWEN3_VL, QWEN25_VL, QWEN3_MOE_VL])
def test_a_split_sequence_is_wrong_and_without_sequence_parallel_an_error(preset, tensor, context, sequence):
    sizes = {"parallel.tensor": tensor, "parallel.context": context, "parallel.sequence": sequence}
    expected = [DRIFT] if tensor > 1 and not sequence else [WRONG] if tensor * context > 1 else []
    problems = found(preset, sizes)
    assert [problem.code for problem in problems] == expected
    assert [problem.severity for problem in problems] == ["error" if code == DRIFT else "warning" for code in expected]


@pytest.mark.parametrize("frozen", list(product((False, True), repeat=3)), ids=lambda frozen: str(frozen))
@pytest.mark.parametrize("stage", ["sft", "dpo", "pt"])
@pytest.mark.parametrize("preset", [QWEN3_VL, QWEN25_VL])
def test_the_rule_holds_while_any_vision_part_is_trained(preset, stage, frozen):
    """LLaMA-Factory's Megatron freezes nothing in pt, and never Qwen3-VL's deep-stack mergers."""
    freeze = {f"training.freeze.{part}": on for part, on in zip(PARTS, frozen, strict=True)}
    tower, projector, _ = frozen
    is_right = tower and projector and preset == QWEN25_VL and stage != "pt"
    assert codes(preset, {**freeze, "parallel.tensor": 2, "training.stage": stage}) == ([] if is_right else [WRONG])


@pytest.mark.parametrize("preset", [QWEN3_VL, QWEN25_VL])
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize("stage", ["sft", "pt"])
def test_every_edit_that_is_offered_removes_the_problem(preset, sequence, stage):
    job = job_of(preset, {"parallel.tensor": 4, "parallel.sequence": sequence, "training.stage": stage})
    (problem,) = (item for item in check(job) if item.code in TRAINED_WRONGLY)
    assert problem.edit == {"parallel.tensor": 1}
    assert dict(problem.choices) == ({"freeze": FROZEN} if preset == QWEN25_VL and stage == "sft" else {})
    for edit in (problem.edit, *problem.choices.values()):
        after = check(with_values(job, edit))
        assert TRAINED_WRONGLY.isdisjoint(item.code for item in after)
        assert errors(after) == []


def test_freezing_is_not_offered_where_nothing_would_be_left_to_train():
    (problem,) = found(QWEN25_VL, {"parallel.tensor": 2, "training.freeze.language_model": True})
    assert problem.choices == {}


def test_cpu_ranks_have_no_sequence_parallel_so_replicas_drift():
    assert codes(QWEN3_VL, {"parallel.tensor": 2, "cluster.gpus_per_node": 2}, gpu="cpu") == [DRIFT]


def test_experts_split_beside_tp_turn_sequence_parallel_on():
    split = {"parallel.tensor": 2, "parallel.expert": 2, "parallel.sequence": False}
    assert codes(QWEN3_MOE_VL, split) == [WRONG]


@pytest.mark.parametrize(
    ("preset", "values"),
    [
        (QWEN3_VL, {"parallel.pipeline": 4}),
        (QWEN3_VL, {"parallel.tensor": 4, "training.images_per_sample": 0}),
        (QWEN25_VL, {"parallel.tensor": 4, "engine": "swift-megatron"}),
        (QWEN3_VL, {"engine": "llamafactory-zero3"}),
        ("qwen3-8b", {"parallel.tensor": 4, "parallel.sequence": False}),
    ],
    ids=["pipeline alone", "text alone", "ms-swift", "ZeRO-3", "text model"],
)
def test_what_trains_right_has_no_problem(preset, values):
    assert codes(preset, values) == []


SWIFT = {"engine": "swift-megatron", "parallel.tensor": 4}


@pytest.mark.parametrize("preset", [QWEN3_VL, QWEN3_MOE_VL])
def test_ms_swift_cuts_deep_stack_gradients_under_sequence_parallel(preset):
    (problem,) = found(preset, SWIFT)
    assert (problem.code, problem.severity) == (CUT, "warning")
    for edit in (problem.edit, *problem.choices.values()):
        after = check(with_values(job_of(preset, SWIFT), edit))
        assert TRAINED_WRONGLY.isdisjoint(item.code for item in after)
        assert errors(after) == []


@pytest.mark.parametrize(
    "values",
    [
        {"parallel.sequence": False},
        {"parallel.tensor": 1},
        {"training.method": "lora"},
        {"training.images_per_sample": 0},
        FROZEN,
    ],
    ids=["no sequence parallel", "TP 1", "LoRA", "text alone", "frozen"],
)
def test_ms_swift_trains_deep_stacks_right_otherwise(values):
    assert codes(QWEN3_VL, SWIFT | values) == []


def test_a_frozen_projector_alone_leaves_the_tower_with_a_wrong_gradient():
    assert codes(QWEN3_VL, {**SWIFT, "training.freeze.projector": True}) == [CUT]
    assert codes(QWEN3_VL, {**SWIFT, "training.freeze.vision_tower": True}) == [CUT]

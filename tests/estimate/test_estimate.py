"""The estimate of a whole job: the seed's case, its terms, what it refuses, and how it is reported."""

import dataclasses
import json

import pytest

from backend.estimate import estimate, to_json
from backend.estimate.memory.reserved import RESERVED_PER_ALLOCATED
from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.job.rules import check
from backend.job.traits import TRAITS
from tests.estimate.cases import NO_IMAGES, TP2_PP2_VPP2, TP4, TP8, job

TERMS = ("weights_gib", "gradients_gib", "optimizer_gib", "activations_gib", "logits_gib", "workspace_gib")


@pytest.mark.parametrize(
    ("plan", "sequence", "expected_gib"),
    [(TP4, True, 24), (TP4, False, 27), (TP8, True, 19), (TP2_PP2_VPP2, False, 33)],
    ids=["TP4 with SP", "TP4 without SP", "TP8 mbs 2", "TP2 PP2 VPP2 without SP"],
)
def test_the_seeds_case_without_images_is_near_its_corrected_figures(plan, sequence, expected_gib):
    result = estimate(job(plan, NO_IMAGES, parallel__sequence=sequence))
    assert result.peak_stage == 0
    assert result.peak_gib == pytest.approx(expected_gib, abs=0.7)


def test_the_trained_tower_adds_about_two_gib_an_image():
    first_one, two = (estimate(job(TP4, training__images_per_sample=count)).peak_gib for count in (1, 2))
    assert two - first_one == pytest.approx(1.98, abs=0.05)


def test_the_seeds_three_plans_have_the_same_global_batch_and_fit():
    estimates = [estimate(job(plan)) for plan in (TP4, TP8, TP2_PP2_VPP2)]
    assert [item.global_batch_size for item in estimates] == [64, 64, 64]
    assert [item.data_parallel for item in estimates] == [8, 4, 8]
    assert all(item.fits for item in estimates)


def test_a_pipeline_shows_its_bubble_and_the_textbooks():
    result = estimate(job(TP2_PP2_VPP2, NO_IMAGES))
    assert result.bubble_textbook == pytest.approx(1 / 17)
    assert result.bubble_fraction > result.bubble_textbook, "the output layer makes the last stage slower"
    assert estimate(job(TP4)).bubble_fraction == estimate(job(TP4)).bubble_textbook == 0


@pytest.mark.parametrize(
    "edits",
    [
        TP4,
        TP2_PP2_VPP2,
        {"parallel.recompute": "full", "parallel.pipeline": 4},
        {"model.preset": "qwen3-30b-a3b", "parallel.pipeline": 2, "parallel.expert": 8},
        {"engine": "llamafactory-ddp", "model.preset": "qwen3-0.6b"},
        {"engine": "llamafactory-ddp", "training.method": "qlora"},
    ],
    ids=["TP4", "VPP", "recompute", "experts", "DDP", "QLoRA"],
)
def test_terms_add_up_to_the_peak_and_the_worst_stage_decides(edits):
    result = estimate(job(edits))
    for stage in result.stages:
        assert sum(getattr(stage, term) for term in TERMS) == pytest.approx(stage.peak_gib)
        assert all(getattr(stage, term) >= 0 for term in TERMS)
    assert (
        result.peak_gib == max(stage.peak_gib for stage in result.stages) == result.stages[result.peak_stage].peak_gib
    )
    if job(edits).traits.is_megatron:
        assert result.reserved_gib == pytest.approx(result.peak_gib * RESERVED_PER_ALLOCATED)


def test_hugging_faces_loss_leaves_a_gap_of_two_bytes_a_logit_in_reserved_memory():
    long = {"engine": "llamafactory-zero3", "model.preset": "qwen3-8b", "training.cutoff_len": 32768}
    [stage] = estimate(job(long)).stages
    assert stage.logits_gib > 0.5 * stage.peak_gib
    rest = stage.peak_gib - stage.logits_gib
    expected = rest * RESERVED_PER_ALLOCATED + stage.logits_gib * 14 / 12
    assert estimate(job(long)).reserved_gib == pytest.approx(expected)
    for edits in ({"training.liger": True}, {"training.stage": "dpo"}):
        result = estimate(job({**long, **edits}))
        assert result.reserved_gib == pytest.approx(result.peak_gib * RESERVED_PER_ALLOCATED)


def test_what_fits_depends_on_the_memory_outside_the_allocator():
    result = estimate(job(TP4))
    slack = result.gpu_memory_gib - result.reserved_gib
    assert estimate(job(TP4, cluster__outside_gib=slack - 0.01)).fits
    assert not estimate(job(TP4, cluster__outside_gib=slack + 0.01)).fits


def test_a_margin_leaves_its_share_of_the_gpu_free_and_moves_no_other_figure():
    result = estimate(job(TP4))
    margin = 1 - (result.reserved_gib + result.outside_gib) / result.gpu_memory_gib
    below, above = (estimate(job(TP4, cluster__memory_margin=margin + change)) for change in (-0.001, 0.001))
    assert (below.fits, above.fits) == (True, False)
    assert above.gpu_memory_gib == pytest.approx((1 - margin - 0.001) * result.gpu_memory_gib)
    assert dataclasses.replace(above, fits=True, fit=result.fit, gpu_memory_gib=result.gpu_memory_gib) == result


def test_ddp_holds_twenty_bytes_a_parameter():
    [stage] = estimate(job(engine="llamafactory-ddp", model__preset="qwen3-8b")).stages
    states = stage.weights_gib + stage.gradients_gib + stage.optimizer_gib
    assert states * 2**30 == 20 * 8190735360


def test_lora_holds_the_base_in_16_bits_and_twenty_bytes_an_adapter_parameter():
    [stage] = estimate(job(engine="llamafactory-ddp", model__preset="qwen3-8b", training__method="lora")).stages
    adapters = stage.trainable_parameters
    # rank 8 on q, k, v, o, gate, up and down of 36 layers: r (in + out) each
    assert adapters == 36 * 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 12288))
    states = stage.weights_gib + stage.gradients_gib + stage.optimizer_gib
    assert states * 2**30 == pytest.approx(2 * 8190735360 + 20 * adapters)


def test_qlora_packs_the_projections_into_about_half_a_byte():
    lora, qlora = (
        estimate(job(engine="llamafactory-ddp", model__preset="qwen3-8b", training__method=method)).stages[0]
        for method in ("lora", "qlora")
    )
    projections = 8190735360 - 2 * 151936 * 4096 - 36 * (2 * 4096 + 2 * 128) - 4096
    saved = (lora.weights_gib - qlora.weights_gib) * 2**30
    assert saved == pytest.approx(projections * (2 - 0.516), rel=0.001)


def test_liger_takes_the_logits_away():
    plain, liger = (
        estimate(job(engine="llamafactory-ddp", model__preset="qwen3-8b", training__method="lora", training__liger=on))
        for on in (False, True)
    )
    assert plain.stages[0].logits_gib == pytest.approx(12 * 4096 * 151936 / 2**30)
    assert liger.stages[0].logits_gib < 0.1
    assert liger.peak_gib < plain.peak_gib - 5


@pytest.mark.parametrize(("preset", "fewer"), [("qwen3-8b", True), ("qwen3-vl-8b", False)])
def test_ligers_kernels_save_less_where_llama_factory_has_them_for_the_model_type(preset, fewer):
    activations = [
        estimate(job(engine="llamafactory-zero3", model__preset=preset, training__liger=on, parallel__recompute="none"))
        .stages[0]
        .activations_gib
        for on in (False, True)
    ]
    assert (activations[1] < 0.8 * activations[0]) is fewer
    assert fewer or activations[1] == activations[0]


def test_the_megatron_path_trains_deep_stack_mergers_of_a_frozen_tower_and_the_hugging_face_path_does_not():
    frozen = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
    megatron = estimate(job(TP4, frozen)).stages[0]
    ddp = estimate(job(frozen, engine="llamafactory-ddp")).stages[0]
    deep_stack = 3 * (2 * 4608 + 4608 * 4608 + 4608 + 4608 * 4096 + 4096)
    assert ddp.trainable_parameters == 8190735360
    assert megatron.trainable_parameters == 2047915008 + deep_stack


def test_freezing_has_no_effect_in_pretraining_under_megatron():
    frozen = {"training.freeze.vision_tower": True, "training.stage": "pt"}
    assert estimate(job(TP4, frozen)).stages == estimate(job(TP4, {"training.stage": "pt"})).stages


def test_flops_are_six_a_weight_and_token_and_attention():
    result = estimate(job(TP4, model__preset="llama-3.1-8b"))
    weights = 8030261248 - 128256 * 4096 - 65 * 4096
    assert result.flops_per_token == pytest.approx(6 * weights + 6 * 32 * 4096 * 32 * 128)


def test_experts_count_only_those_a_token_visits():
    result = estimate(job(model__preset="qwen3-30b-a3b", parallel__pipeline=4))
    active = 48 * (2048 * (4096 + 2 * 512) + 4096 * 2048 + 2048 * 128 + 8 * 3 * 2048 * 768) + 2048 * 151936
    assert result.flops_per_token == pytest.approx(6 * active + 6 * 48 * 4096 * 32 * 128)


def test_frozen_weights_on_the_gradients_path_cost_two_thirds():
    full = estimate(job(engine="llamafactory-ddp", model__preset="qwen3-8b")).flops_per_token
    lora = estimate(job(engine="llamafactory-ddp", model__preset="qwen3-8b", training__method="lora")).flops_per_token
    attention = 6 * 36 * 4096 * 32 * 128
    assert lora - attention == pytest.approx((full - attention) * 2 / 3)


def test_a_method_that_the_engine_does_not_have_is_reported_and_not_guessed():
    with pytest.raises(ProblemsError) as raised:
        estimate(job(training__method="lora"))
    [problem] = raised.value.problems
    assert (problem.code, problem.field, problem.severity) == ("estimate_not_modelled", "training.method", "warning")


@pytest.mark.parametrize("engine", list(TRAITS))
@pytest.mark.parametrize("preset", ["qwen3-8b", "qwen3-30b-a3b", "qwen3-vl-8b"])
def test_every_engine_has_an_estimate_for_all_that_it_offers(engine, preset):
    traits = TRAITS[engine]
    for stage in traits.stages:
        for method in traits.methods:
            for precision in ("bf16", "fp16", "fp32"):
                edits = {"training.stage": stage, "training.method": method, "training.precision": precision}
                result = estimate(job(edits, engine=engine, model__preset=preset))
                assert 0 < result.peak_gib < 2000
                assert 0 < result.stages[0].trainable_parameters <= result.stages[0].parameters


def test_an_unknown_model_is_a_problem_of_its_field():
    with pytest.raises(ProblemsError) as raised:
        estimate(job(model__preset="qwen9-vl"))
    assert raised.value.problems[0].code == "unknown_model"


def test_offloaded_optimizer_states_move_to_the_host():
    resident, moved = (estimate(job(TP4, parallel__optimizer_offload_fraction=part)) for part in (0.0, 0.5))
    assert resident.host_memory_gib == 0
    assert moved.stages[0].optimizer_gib == pytest.approx(resident.stages[0].optimizer_gib / 2)
    assert moved.host_memory_gib == pytest.approx(8 * resident.stages[0].optimizer_gib / 2 * 16 / 12)


def test_the_report_has_the_contracts_keys_and_is_json():
    problems = [{"code": "no_shuffling", "field": "", "message": "", "fix": "", "severity": "note"}]
    report = to_json(estimate(job(TP2_PP2_VPP2)), problems)
    assert json.loads(json.dumps(report)) == report
    assert {
        "name", "fits", "gpu_memory_gib", "outside_gib", "peak_gib", "reserved_gib", "peak_stage", "stages",
        "host_memory_gib", "data_parallel", "global_batch_size", "bubble_fraction", "bubble_textbook",
        "flops_per_token", "iteration_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hours",
        "communication_s", "time_s", "stage_times", "time_error", "memory_error",
        "memory_assumed", "memory_unknown", "time_unknown", "calibrated_on", "probed_on", "problems",
    } <= report.keys()  # fmt: skip
    assert {
        "stage", "layers", "parameters", "expert_parameters", "trainable_parameters", *TERMS, "peak_gib",
    } == report["stages"][0].keys()  # fmt: skip
    assert report["problems"] == problems


def test_without_an_estimate_there_are_problems_and_no_figures():
    assert to_json(None, [{"code": "x"}], name="n") == {"name": "n", "problems": [{"code": "x"}]}


def test_the_seeds_plans_are_legal():
    for plan in (TP4, TP8, TP2_PP2_VPP2):
        assert [problem for problem in check(job(plan)) if problem.severity == "error"] == []


def test_an_estimate_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimate(job(TP4)).fits = False


def test_a_layout_costs_what_its_stages_hold():
    base = job(model__preset="qwen3-235b-a22b", parallel__expert=8, parallel__pipeline=4)
    counted = {"parallel.account_for_embedding": True, "parallel.account_for_loss": True}
    as_layout = estimate(with_values(base, {"parallel.pipeline_layout": "Et*23|(t*24|)*2t*23L"}))
    assert as_layout == estimate(with_values(base, counted))
    moved = estimate(with_values(base, {"parallel.pipeline_layout": "Et*20|t*24|t*24|t*26L"}))
    assert [stage.layers for stage in moved.stages] == [20, 24, 24, 26]
    assert moved.stages[0].peak_gib < as_layout.stages[0].peak_gib
    assert moved.bubble_fraction > as_layout.bubble_fraction


def test_chunks_of_a_layout_are_dealt_to_stages_in_turns():
    base = job(model__preset="qwen3-8b", parallel__pipeline=2, parallel__virtual_pipeline=2,
               training__gradient_accumulation_steps=4)  # fmt: skip
    result = estimate(with_values(base, {"parallel.pipeline_layout": "Et*5|t*9|t*11|t*11L"}))
    assert [stage.layers for stage in result.stages] == [16, 20]

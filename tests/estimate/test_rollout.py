"""Memory and time of GRPO: what the generation of completions adds to the training."""

from typing import Any

import pytest

from backend.estimate import Estimate, estimate, near_the_limit
from backend.estimate.memory.explain import explain
from backend.estimate.memory.rollout import cached_elements
from backend.estimate.model.model_layers import model_layers
from backend.job.batch import steps_per_epoch
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.planning.enumerate import enumerate_plans


def grpo(engine: str = "swift-zero3", **values: Any) -> Job:
    mapping = {
        "cluster": {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8},
        "model": {"preset": "qwen3-4b"},
        "engine": engine,
        "training": {
            "stage": "grpo",
            "cutoff_len": 2048,
            "samples": 1001,
            "grpo": {"rewards": "format", "completion_len": 2048},
        },
    }
    job, problems = parse_job(mapping)
    assert job is not None, problems
    return with_values(job, values)


def workspace(job: Job) -> dict[str, float]:
    parts = explain(job, resolve_model(job.model), resolve_gpu(job.cluster))
    return {part.name: part.gib for part in parts[0]}


def test_the_cache_of_qwen3_4b_has_the_keys_and_values_of_its_config() -> None:
    # config.json of Qwen3-4B: 36 layers, 8 key and value heads of 128.
    assert cached_elements(model_layers(resolve_model(grpo().model))) == 36 * 8 * 2 * 128


def test_a_rank_keeps_the_cache_of_all_its_completions_and_zero_3_gathers_the_model() -> None:
    parts = workspace(grpo())
    # A step has 8 micro-batches of one sequence on each rank.
    assert parts["workspace_kv_cache"] == pytest.approx(8 * 4096 * 36 * 8 * 2 * 128 * 2 / 2**30)
    assert parts["workspace_gathered"] == pytest.approx(2 * 4.022e9 / 2**30, rel=0.01)
    assert "rest" not in parts


@pytest.mark.parametrize(("sleeps", "is_added"), [(True, False), (False, True)])
def test_vllm_takes_its_share_beside_the_states_or_beside_the_whole_training(sleeps: bool, is_added: bool) -> None:
    vllm = grpo(**{"training.grpo.rollout": "vllm", "training.grpo.vllm_sleep": sleeps})
    share = 0.5 * resolve_gpu(vllm.cluster).memory_gib
    stage, parts = estimate(vllm).stages[0], workspace(vllm)
    assert parts["workspace_vllm"] == pytest.approx(share)
    assert (stage.logits_gib > 0) is is_added
    assert "rest" not in parts


def test_only_completions_have_logits() -> None:
    by_length = {
        length: estimate(grpo("swift-fsdp", **{"training.grpo.completion_len": length})).stages[0].logits_gib
        for length in (1024, 2048)
    }
    assert by_length[2048] == pytest.approx(2 * by_length[1024])


@pytest.mark.parametrize(("values", "has_copy"), [({}, True), ({"training.grpo.beta": 0.0}, False)])
def test_a_reference_model_is_there_only_with_a_beta(values: dict[str, Any], has_copy: bool) -> None:
    assert ("weights_reference" in workspace(grpo("swift-ddp", **values))) is has_copy


def test_no_time_is_claimed() -> None:
    figures = estimate(grpo())
    assert {getattr(figures, name) for name in Estimate.__dataclass_fields__ if name.endswith("_s")} == {None}
    assert (figures.hours, figures.tokens_per_s_per_gpu) == (None, None)


def test_an_epoch_has_a_group_for_every_prompt_and_drops_the_rest() -> None:
    # 1001 prompts x 8 completions, 64 completions a step
    assert steps_per_epoch(grpo()) == 125


def test_every_plan_of_many_has_the_memory_of_its_own_estimate() -> None:
    plans = enumerate_plans(grpo(**{"training.global_batch_size": 64}))
    figures = plans.figures_of(slice(None))
    for rank in (0, len(plans) // 2, len(plans) - 1):
        assert figures.reserved_gib[rank] == pytest.approx(plans[rank].estimate.reserved_gib)
    assert figures.iteration_s is None


def test_an_assumed_need_has_no_interval_and_must_fit_with_the_margin_of_other_training() -> None:
    assumed, known = estimate(grpo()), estimate(grpo(**{"training.stage": "sft"}))
    assert (assumed.need_gib_low, assumed.need_gib_high, assumed.memory_error) == (None, None, None)
    assert (assumed.memory_assumed, known.memory_assumed) == (True, False)
    assert known.need_gib_high is not None
    need = assumed.reserved_gib + assumed.outside_gib
    close = grpo(**{"cluster.gpu": {"memory_gib": 1.01 * need, "bf16_tflops": 989.0, "hbm_gb_per_s": 3350.0}})
    figures = estimate(close)
    assert (figures.fits, figures.fit) == (True, "close")
    (note,) = near_the_limit(close, figures)
    assert (note.code, note.severity) == ("near_the_limit_assumed", "note")

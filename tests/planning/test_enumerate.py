"""The plans of a job: exactly the legal ones, at one global batch, the fastest that fits first."""

import itertools

import numpy as np
import pytest

from backend.estimate import estimate
from backend.estimate.batched import PARTS
from backend.job.mapping import with_values
from backend.job.pipeline_layout import even_layers, layout_of
from backend.job.problems import errors
from backend.job.rules import check
from backend.job.rules.vision import TRAINED_WRONGLY
from backend.planning import arrange, best_of_splits, enumerate_plans, front, recommended, warned_engines, why_not
from backend.planning import enumerate as enumerate_module
from backend.planning.enumerate import engines_of
from tests.estimate.cases import NO_IMAGES, TP4, job

MODELS = ["qwen3-vl-8b", "llama-3.1-70b", "mixtral-8x7b"]
MEGATRON = ["llamafactory-megatron"]
ALL = slice(None)


def some(plans):
    """Plans from every region of the ranking."""
    return [plans[int(rank)] for rank in np.linspace(0, len(plans) - 1, 25)]


@pytest.mark.parametrize("preset", MODELS)
def test_every_plan_is_legal_and_keeps_the_global_batch(preset):
    base = job(TP4, model__preset=preset, cluster__nodes=4 if preset == "qwen3-vl-8b" else 1)
    for candidate in some(enumerate_plans(base)):
        chosen = with_values(base, candidate.edits)
        assert errors(check(chosen)) == []
        assert candidate.estimate.global_batch_size == base.global_batch == chosen.global_batch


@pytest.mark.slow
def test_no_legal_split_of_a_small_grid_is_missing():
    base = job(TP4, cluster__nodes=1, model__preset="llama-3.1-8b", training__global_batch_size=64)
    legal = set()
    for tensor, pipeline, virtual, context in itertools.product(range(1, 9), range(1, 9), range(1, 33), (1, 2, 4, 8)):
        sizes = {"tensor": tensor, "pipeline": pipeline, "virtual_pipeline": virtual, "context": context}
        chosen = with_values(base, {f"parallel.{name}": size for name, size in sizes.items()})
        if chosen.data_parallel and chosen.global_batch == 64 and not errors(check(chosen)):
            legal.add((tensor, pipeline, virtual, context))
    plans = enumerate_plans(base, MEGATRON)
    bare = ~(plans.column("parallel.account_for_embedding") | plans.column("parallel.account_for_loss"))
    bare &= plans.column("parallel.pipeline_layout", None) == None  # noqa: E711 - of an array
    paths = [f"parallel.{name}" for name in ("tensor", "pipeline", "virtual_pipeline", "context")]
    assert {*zip(*(plans.column(path)[bare].tolist() for path in paths), strict=True)} == legal


@pytest.mark.parametrize(
    "edits", [*({"model.preset": name} for name in MODELS), {"training.images_per_sample": 0},
              {"training.method": "lora", "training.freeze.vision_tower": True},
              {"model.preset": "mixtral-8x7b", "training.sample_tokens": 700},
              {"training.liger": True, "training.sample_tokens": 700, "parallel.fsdp.reshard_after_forward": False},
              {"engine": "swift-megatron", "training.sample_tokens": 300, "training.samples": 100_000}], ids=str
)  # fmt: skip
def test_figures_of_many_plans_are_those_of_each_alone(edits):
    base = job(TP4, edits, cluster__nodes=1)
    plans = enumerate_plans(base)
    figures = plans.figures_of(ALL)
    for rank in np.linspace(0, len(plans) - 1, 30).astype(int).tolist():
        alone = plans[rank].estimate
        assert figures.reserved_gib[rank] == pytest.approx(alone.reserved_gib)
        assert bool(figures.fits[rank]) == alone.fits
        # Schedules of many plans are simulated for fewer micro-batches.
        assert figures.iteration_s[rank] == pytest.approx(alone.iteration_s, rel=0.02)
        assert figures.bubble_fraction[rank] == pytest.approx(alone.bubble_fraction, abs=0.02)
        times = dict(zip(PARTS, plans.parts_s(np.array([rank]))[:, 0].tolist(), strict=True))
        for part, seconds in alone.time_s.items():
            if part != "bubble":
                assert times[part] == pytest.approx(seconds), part
        assert sum(times.values()) == pytest.approx(figures.iteration_s[rank])


@pytest.mark.parametrize("alone", [(), ("parallel.distributed_optimizer",)])
def test_plans_in_lines_cost_what_each_costs_without_the_others(monkeypatch, alone):
    """Neither recompute nor the distributed optimizer has a line, or only the latter."""

    def found():
        for name in ("_newest", "_legal"):
            monkeypatch.setattr(enumerate_module, name, {})
        plans = enumerate_plans(job(TP4, model__preset="mixtral-8x7b", cluster__nodes=1), MEGATRON)
        return [
            plans.figures_of(ALL).reserved_gib,
            plans.figures_of(ALL).iteration_s,
            plans.parts_s(ALL),
            plans.at(ALL)[1],
        ]

    def only_alone(space, cut, free):
        return lines_of(space, cut, free) if {space.axes[axis].paths[0] for axis in free} == {*alone} else None

    in_lines, lines_of = found(), arrange._lines_of
    monkeypatch.setattr(arrange, "_lines_of", only_alone)
    assert all(map(np.array_equal, in_lines, found()))


@pytest.mark.parametrize("engine", [*engines_of(job()), "swift-megatron"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_every_engine_and_method_is_enumerated_or_refused_by_name(engine, method):
    base = job(model__preset="qwen3-8b", training__method=method)
    plans = enumerate_plans(base, [engine])
    if not len(plans):
        assert plans.rejected.keys() & {"method_not_supported", "estimate_not_modelled"}
        return
    assert plans[0].estimate.reserved_gib == pytest.approx(plans.figures_of(ALL).reserved_gib[0])


def test_the_seeds_three_plans_are_among_them():
    plans = enumerate_plans(job(TP4, NO_IMAGES), MEGATRON)
    paths = [f"parallel.{name}" for name in ("tensor", "pipeline", "virtual_pipeline")]
    assert {(4, 1, 1), (8, 1, 1), (2, 2, 2)} <= {*zip(*(plans.column(path).tolist() for path in paths), strict=True)}


VISION_MODELS = ["qwen3-vl-8b", "qwen3-vl-30b-a3b", "qwen2.5-vl-7b"]


@pytest.mark.parametrize("preset", VISION_MODELS)
@pytest.mark.parametrize("tower", [False, True], ids=["trained", "frozen tower"])
def test_no_plan_trains_vision_parts_wrongly(preset, tower):
    plans = enumerate_plans(job(TP4, model__preset=preset, training__freeze__vision_tower=tower))
    assert plans.fitting
    assert {*plans.column("parallel.tensor").tolist()} == {*plans.column("parallel.context").tolist()} == {1}
    assert (plans.column("parallel.pipeline") > 1).any()
    assert {warning.code for warning in some(plans) for warning in warning.warnings} & TRAINED_WRONGLY == set()
    assert plans.rejected["vision_gradients_wrong"] > 0
    assert plans.rejected["vision_replicas_drift"] > 0


@pytest.mark.slow
def test_where_every_vision_part_is_frozen_tp_is_among_the_plans():
    frozen = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
    plans = enumerate_plans(job(TP4, frozen, model__preset="qwen2.5-vl-7b"), MEGATRON)
    assert {1, 2, 4} <= {*plans.column("parallel.tensor").tolist()}


def test_the_recommended_plan_of_the_seed_trains_right_and_is_no_slower_than_the_plan_asked_for():
    plans = enumerate_plans(job(TP4))
    rank = recommended(plans)
    assert rank is not None
    assert rank < plans.fitting
    best = plans[rank]
    assert TRAINED_WRONGLY.isdisjoint(warning.code for warning in best.warnings)
    assert best.estimate.tokens_per_s_per_gpu > estimate(job(TP4)).tokens_per_s_per_gpu


def test_what_fits_comes_first_by_speed_and_what_does_not_by_its_need():
    plans = enumerate_plans(job(TP4))
    fits, time, need = plans.figures_of(ALL).fits, plans.figures_of(ALL).iteration_s, plans.figures_of(ALL).need_gib
    assert 0 < fits.sum() < len(plans)
    assert (np.diff(fits.astype(int)) <= 0).all()
    for group in (slice(plans.surely_fitting), slice(plans.surely_fitting, plans.fitting)):
        assert (np.diff(time[group]) >= 0).all()
    assert (np.diff(need[~fits]) >= 0).all()


def test_without_a_known_speed_the_bubble_takes_its_place_and_offloading_comes_last():
    values = {"cluster__gpu": "cpu", "cluster__gpus_per_node": 2, "training__precision": "fp32"}
    result = enumerate_plans(job(TP4, model__preset="qwen3-0.6b", **values))
    assert result.figures_of(ALL).iteration_s is None
    offloads = np.array([space.job.traits.offloads != "none" for space in result.spaces])[result.engine]
    assert 0 < offloads[: result.fitting].sum() < result.fitting
    is_warned = np.isin([space.job.engine for space in result.spaces], warned_engines(result))[result.engine]
    bubbles = result.figures_of(ALL).bubble_fraction
    for group in (slice(result.surely_fitting), slice(result.surely_fitting, result.fitting)):
        for part in (is_warned[group], ~is_warned[group]):
            assert (np.diff(offloads[group][part].astype(int)) >= 0).all()
            assert (np.diff(bubbles[group][part & ~offloads[group]]) >= 0).all()


def test_the_wanted_global_batch_decides_the_accumulation():
    result = enumerate_plans(job(TP4, training__global_batch_size=128))
    assert {item.estimate.global_batch_size for item in some(result)} == {128}
    assert all("training.gradient_accumulation_steps" not in item.edits for item in some(result))


def test_a_global_batch_that_replicas_cannot_share_is_counted_as_a_refusal():
    plans = enumerate_plans(job(TP4, NO_IMAGES, training__global_batch_size=12))
    assert plans.rejected["global_batch_not_divisible"] > 0
    assert len(plans)
    assert all(12 % item.estimate.data_parallel == 0 for item in some(plans))


def test_layers_that_do_not_divide_are_cut_into_unequal_stages_and_choosing_them_asks_for_the_same_plans():
    base = job(TP4, model__preset="qwen3-8b")
    plans = enumerate_plans(base, MEGATRON)
    eight = np.flatnonzero(plans.column("parallel.pipeline") == 8)
    assert {*plans.column("parallel.pipeline_layout", None)[eight]} == {
        layout_of(even_layers(36, 8 * virtual)) for virtual in (1, 2)
    }
    rank = int(eight[0])
    chosen = plans[rank].job
    assert errors(check(chosen)) == []
    again = enumerate_plans(chosen, MEGATRON)
    assert again.unordered is plans.unordered
    assert again.rank_of(chosen) == rank
    # Its replacement says that its stages are equal.
    one_stage = int(np.flatnonzero(plans.column("parallel.pipeline") == 1)[0])
    assert plans[one_stage].edits["parallel.pipeline_layout"] is None


@pytest.mark.parametrize("layout", ["nonsense", "Et*3|nonsense", "Et*3|t*3L", "E(t*999|)*999L"])
def test_a_layout_that_cannot_be_leaves_the_other_plans(layout):
    base = job(TP4, model__preset="qwen3-8b", parallel__pipeline=2)
    plans, others = (
        enumerate_plans(created, MEGATRON)
        for created in (with_values(base, {"parallel.pipeline_layout": layout}), base)
    )
    assert len(plans) == len(others)
    assert plans[0].edits == others[0].edits


def test_a_layout_of_ones_own_is_among_the_plans():
    base = job(TP4, model__preset="qwen3-8b", parallel__pipeline=2, parallel__pipeline_layout="Et*16|t*20L")
    plans = enumerate_plans(base, MEGATRON)
    rank = plans.rank_of(base)
    assert plans[rank].estimate.iteration_s == pytest.approx(estimate(base).iteration_s)
    assert rank != plans.rank_of(with_values(base, {"parallel.pipeline_layout": None}))


def test_experts_are_spread_in_every_way_that_divides():
    plans = enumerate_plans(job(model__preset="mixtral-8x7b", cluster__nodes=1), MEGATRON)
    expert, tensor, pipeline = (plans.column(f"parallel.{name}") for name in ("expert", "expert_tensor", "pipeline"))
    assert {*expert.tolist()} == {*tensor.tolist()} == {1, 2, 4, 8}
    assert (8 % (expert * tensor * pipeline) == 0).all()


def test_choosing_a_plan_asks_for_the_same_plans_again():
    base = job(TP4)
    plans = enumerate_plans(base)
    # A plan that counts the embedding as a layer adds further plans: those that do the same.
    counted = np.any([plans.column(f"parallel.account_for_{name}", False) for name in ("embedding", "loss")], axis=0)
    middle = int(np.flatnonzero(~counted)[(~counted).sum() // 2])
    chosen = plans[middle].job
    again = enumerate_plans(chosen)
    assert again.unordered is plans.unordered
    assert again.rank_of(chosen) == middle


def test_an_answer_that_another_thread_has_removed_meanwhile_is_no_error(monkeypatch):
    class Shared(dict):
        def __iter__(self):
            return iter([("full", 8, 64), *super().__iter__()])

    cache = Shared()
    monkeypatch.setattr(enumerate_module, "_newest", cache)
    monkeypatch.setattr(enumerate_module, "_MAX_NEWEST", 1)
    enumerate_module._keep(("full", 16, 64), ())
    assert dict.keys(cache) == {("full", 16, 64)}


def test_a_job_finds_its_own_plan_by_what_takes_effect():
    plans = enumerate_plans(job(TP4, NO_IMAGES))
    own = plans.rank_of(job(TP4, NO_IMAGES))
    assert own is not None
    assert plans[own].job.parallel.tensor == 4
    # Without TP, sequence parallel has no effect.
    assert plans.rank_of(job(parallel__sequence=False)) == plans.rank_of(job(parallel__sequence=True))
    assert plans.rank_of(job(parallel__tensor=16)) is None


def test_an_edit_that_no_rule_reads_changes_figures_and_no_legality():
    before, after = (enumerate_plans(job(TP4, training__cutoff_len=length)) for length in (4096, 2048))
    assert len(before) == len(after)
    assert before.rejected == after.rejected
    assert after.figures_of(ALL).reserved_gib.max() < before.figures_of(ALL).reserved_gib.max()


def test_no_plan_recomputes_what_its_model_or_its_switches_do_not_have():
    def modules(preset, **values):
        plans = enumerate_plans(
            job(model__preset=preset, cluster__nodes=1, cluster__gpus_per_node=2, **values), MEGATRON
        )
        return {plan for _, chosen, _ in plans.recompute(slice(0, None, 7)) for plan in chosen}

    assert modules("qwen3-8b") <= {"core_attn", "mlp", "layernorm"}
    assert "moe_act" in modules("mixtral-8x7b")
    assert "moe_act" not in modules("mixtral-8x7b", parallel__moe_grouped_gemm=False)


def test_what_a_rule_says_of_the_whole_job_leaves_its_plans_to_be_compared():
    assert len(enumerate_plans(job(TP4, training__seed=0))) == len(enumerate_plans(job(TP4)))


def test_no_plan_beats_one_of_the_front_in_both_memory_and_speed():
    plans = enumerate_plans(job(TP4))
    need, time = plans.figures_of(ALL).need_gib, plans.figures_of(ALL).iteration_s
    ranks = front(plans, len(plans))
    assert ranks
    for rank in ranks:
        assert not ((need < need[rank]) & (time < time[rank])).any()
    assert np.argmin(time) in ranks


@pytest.mark.parametrize("preset", ["gpt-oss-20b", "gemma-4-12b"])
def test_plans_of_an_engine_that_needs_another_setting_come_last(preset):
    plans = enumerate_plans(job(engine="swift-zero3", model__preset=preset))
    assert plans[0].job.engine != "swift-megatron"
    assert warned_engines(plans) == ["swift-megatron"]
    unfused = {"attention_backend": "unfused"}
    assert warned_engines(enumerate_plans(job(engine="swift-zero3", model__preset=preset, extra=unfused))) == []


def test_each_way_to_split_the_model_is_listed_once_with_its_best_plan():
    plans = enumerate_plans(job(TP4, NO_IMAGES))
    ranks = best_of_splits(plans, len(plans))
    assert ranks == sorted(ranks)
    assert ranks[0] == 0
    tensors = plans.column("parallel.tensor")[ranks]
    assert {*tensors.tolist()} == {1, 2, 4, 8}
    assert len(ranks) < len(plans) / 10


def test_no_legal_split_of_a_vision_model_over_nodes_is_missing():
    base = job(NO_IMAGES, model__preset="qwen3-vl-8b", training__global_batch_size=96)
    plans = enumerate_plans(base, MEGATRON)
    legal = {*zip(*(plans.column(f"parallel.{name}").tolist() for name in ("tensor", "pipeline")), strict=True)}
    for tensor, pipeline in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):
        alone = with_values(base, {"parallel.tensor": tensor, "parallel.pipeline": pipeline})
        if not errors(check(alone)):
            assert (tensor, pipeline) in legal


def test_values_of_some_plans_are_those_of_the_whole_column():
    plans = enumerate_plans(job(TP4, cluster__nodes=1, model__preset="mixtral-8x7b"))
    ranks = np.array([0, 7, len(plans) - 1])
    for path, default in (("parallel.expert", 1), ("parallel.sequence", True), ("training.micro_batch_size", 1)):
        result = plans.values(path, ranks, default)
        assert result.tolist() == plans.column(path, default)[ranks].tolist()


@pytest.mark.parametrize("preset", ["qwen3-8b", "qwen3-30b-a3b"])
def test_where_no_rank_shares_the_optimizer_its_sharding_tells_no_plans_apart(preset):
    base = job(TP4, model__preset=preset, cluster__nodes=1)
    plans = enumerate_plans(base, MEGATRON)
    sharded = plans.column("parallel.distributed_optimizer")
    alone = plans.column("parallel.tensor") * plans.column("parallel.pipeline") == base.world_size
    if preset != "qwen3-8b":
        experts = (plans.column(f"parallel.{name}") for name in ("pipeline", "expert", "expert_tensor"))
        alone &= np.prod(list(experts), axis=0) == base.world_size
    assert alone.any()
    assert sharded[alone].all()
    assert (~sharded[~alone]).sum() == sharded[~alone].sum()
    # A plan that is not offered equals another one, which is found instead.
    for rank in np.flatnonzero(alone)[:3].tolist():
        other = with_values(plans[rank].job, {"parallel.distributed_optimizer": False})
        assert errors(check(other)) == []
        assert estimate(other) == plans[rank].estimate
        assert plans.rank_of(other) == rank
        sizes = {
            path: value for path, value in plans[rank].edits.items() if path in ("parallel.tensor", "parallel.pipeline")
        }
        assert why_not(other, sizes, enumerate_plans(other, MEGATRON)).rank is not None

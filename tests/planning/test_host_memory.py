"""A plan that offloads more than a node's RAM does not fit, if that RAM is known."""

from dataclasses import replace

import numpy as np
import pytest

from app.text import LANGUAGES, t
from app.text.plans import explain, reason_words, why_not_words
from backend.estimate import estimate, over_memory
from backend.job.cluster import Cluster
from backend.job.job import Job, Model, Parallel
from backend.job.training import Training
from backend.planning import enumerate_plans, front, parse_sizes, strategies, why_not

OFFLOADED = ["llamafactory-zero2-offload", "llamafactory-zero3-offload"]
ALL = slice(None)


def job_of(host_memory_gib, *, nodes=1, gpus=1, **parallel):
    cluster = Cluster(gpu="h100-80g", nodes=nodes, gpus_per_node=gpus, host_memory_gib=host_memory_gib)
    return Job(cluster=cluster, model=Model(preset="qwen3-8b"), parallel=Parallel(**parallel),
               training=Training(global_batch_size=16))  # fmt: skip


def offloading(host_memory_gib):
    """Two nodes with Megatron's optimizer on the host, where a split decides how much RAM a node needs."""
    return job_of(host_memory_gib, nodes=2, gpus=8, optimizer_offload_fraction=1.0)


def test_what_a_node_cannot_hold_does_not_fit_though_its_gpu_could():
    known, unknown = (replace(job_of(gib), engine=OFFLOADED[0]) for gib in (16, None))
    assert estimate(unknown).fits
    assert not estimate(known).fits
    assert over_memory(known, estimate(known)) == []
    assert replace(estimate(known), fits=True, fit=estimate(unknown).fit) == estimate(unknown)


@pytest.mark.parametrize("gib", [16.0, 60.0, 145.0, 300.0, 10_000.0])
def test_many_plans_and_each_alone_agree_on_a_nodes_memory(gib):
    plans = enumerate_plans(offloading(gib))
    for rank in np.linspace(0, len(plans) - 1, 40).astype(int).tolist():
        alone = plans[rank].estimate
        assert plans.figures_of(ALL).host_memory_gib[rank] == pytest.approx(alone.host_memory_gib)
        assert bool(plans.figures_of(ALL).fits[rank]) == alone.fits


def test_what_goes_to_nvme_is_no_nodes_memory_among_many_either():
    job = job_of(16, offload_device="nvme", offload_folder="/scratch")
    best = enumerate_plans(job, OFFLOADED)[0]
    assert (best.job.engine, best.estimate.fits) == (OFFLOADED[1], True)


def test_what_a_node_cannot_hold_comes_after_what_fits_and_on_no_front():
    plans = enumerate_plans(offloading(145.0))
    fits, host = plans.figures_of(ALL).fits, plans.figures_of(ALL).host_memory_gib
    assert 0 < fits.sum() < len(plans)
    assert (host[fits] <= 145).all()
    assert (np.diff(fits.astype(int)) <= 0).all()
    best = front(plans, len(plans))
    assert best
    assert (host[best] <= 145).all()


def test_where_a_nodes_memory_suffices_or_is_not_known_the_ranking_is_the_same():
    known, unknown = (enumerate_plans(offloading(gib)) for gib in (60_000.0, None))
    assert unknown.figures_of(ALL).host_memory_gib is None
    assert np.array_equal(known.figures_of(ALL).reserved_gib, unknown.figures_of(ALL).reserved_gib)
    assert front(known, len(known)) == front(unknown, len(unknown))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_strategies_say_what_a_node_must_hold_and_refuse_what_it_cannot(lang):
    rows = {gib: {row.key: row for row in strategies(job_of(gib))} for gib in (None, 16.0, 60_000.0)}
    row = rows[16.0]["zero2-offload"]
    assert (row.fits, row.recommended, row.reason) == (False, False, "host_too_large")
    assert rows[None]["zero2-offload"].fits
    for gib in rows:
        words = reason_words(rows[gib]["zero2-offload"], lang)
        assert f"{row.best.estimate.host_memory_gib:.1f} GiB" in words
        assert ("16.0 GiB" in words) == (gib == 16.0)
    assert not any(item.reason == "host_too_large" for item in rows[None].values())
    assert "GiB" not in reason_words(rows[16.0]["qlora"], lang)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_why_not_says_that_a_nodes_memory_is_what_is_missing(lang):
    job = job_of(16)
    plans = enumerate_plans(job, OFFLOADED)
    result = why_not(job, parse_sizes("MBS1"), plans)
    assert (result.cost.over_gib, result.cost.over_host_gib) == (
        0.0, pytest.approx(result.best.estimate.host_memory_gib - 16))  # fmt: skip
    words = why_not_words(result, plans, lang)
    assert f"{result.best.estimate.host_memory_gib:.1f}" in words
    assert "16.0 GiB" in words
    needs = f"{plans[0].estimate.host_memory_gib:.1f}"
    assert t(lang, "wizard.plan.host.exceeded", needs=needs, has="16.0") in explain(plans, lang)

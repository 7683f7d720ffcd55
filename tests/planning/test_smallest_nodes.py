"""The node with the smallest GPUs limits all plans, and the gain without it is computed."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.job.cluster import Cluster, Host
from backend.job.job import Job, Model
from backend.job.presets import gpus
from backend.job.rules import check
from backend.job.training import Training
from backend.planning import enumerate_plans, smallest_nodes, tokens_per_s

H100 = 81559 / 1024
"""Memory that nvidia-smi reads: more than torch can use."""


def job_on(*read, model="llama-3.1-8b", batch=48):
    hosts = tuple(Host(address=f"10.0.0.{number}", gpu_memory_gib=gib) for number, gib in enumerate(read, 1))
    cluster = Cluster(gpu="h100-80g", nodes=len(read), gpus_per_node=8, hosts=hosts)
    return Job(cluster=cluster, model=Model(preset=model), training=Training(global_batch_size=batch))


def found_of(job):
    return smallest_nodes(job, enumerate_plans(job))


@pytest.mark.parametrize("read", [(H100,) * 3, (None,) * 3, (H100, None, H100 + 0.1)], ids=["alike", "unread", "some"])
def test_nodes_that_do_not_differ_hold_nothing_back(read):
    assert estimate(job_on(*read)).gpu_memory_gib == gpus()["h100-80g"].memory_gib
    assert found_of(job_on(*read)) is None


def test_the_smallest_gpu_decides_what_plans_may_need():
    result = enumerate_plans(job_on(H100, 24.0, H100))
    assert result[0].estimate.gpu_memory_gib == gpus()["rtx4090-24g"].memory_gib
    assert result[0].estimate.fits
    assert result[0].estimate.reserved_gib + 1.5 <= 23.64


def test_a_margin_is_kept_free_by_every_plan_and_changes_nothing_that_is_said_of_the_gpus():
    job = job_on(H100, 60.0, H100)
    careful = replace(job, cluster=replace(job.cluster, memory_margin=0.5))
    plans, least = enumerate_plans(careful), found_of(job).least_gib
    figures, carefree = (plan.figures_of(slice(None)) for plan in (plans, enumerate_plans(job)))
    assert figures.fits.tolist() == (figures.need_gib <= 0.5 * least).tolist()
    assert 0 < figures.fits.sum() < carefree.fits.sum()
    assert found_of(careful).least_gib == least
    calls = [[plan for plan in check(tried) if plan.code == "gpu_memory_mixed"] for tried in (job, careful)]
    assert calls[0] == calls[1] != []


@pytest.mark.parametrize(("named", "others"), [("a100-80g", 79.2), ("a800-80g", 79.3), ("h200-141g", H100)])
def test_the_warning_and_the_sentence_say_the_same_of_the_other_nodes(named, others):
    job = job_on(others, 24.0, others)
    job = replace(job, cluster=replace(job.cluster, gpu=named))
    [text] = [problem.values for problem in check(job) if problem.code == "gpu_memory_mixed"]
    result = found_of(job)
    assert (text["least"], text["others"]) == (round(result.least_gib, 1), round(result.others_gib, 1))


def test_where_the_others_are_faster_alone_they_are_told_to_be():
    job = job_on(H100, H100, 24.0, H100, model="llama-3.1-70b", batch=96)
    result = found_of(job)
    assert (result.nodes, result.others, result.helps) == (("10.0.0.3",), 3, True)
    alone = result.without.job
    assert (alone.cluster.nodes, alone.global_batch) == (3, 96)
    assert estimate(alone).fits
    assert tokens_per_s(result.without) == pytest.approx(24 * estimate(alone).tokens_per_s_per_gpu)
    assert tokens_per_s(result.without) > tokens_per_s(result.best)


def test_where_the_node_is_worth_its_memory_it_is_kept():
    result = found_of(job_on(H100, 60.0, H100))
    assert result.without is not None
    assert not result.helps


def test_of_nodes_that_are_all_smaller_than_the_named_gpu_none_holds_back():
    assert found_of(job_on(40.0, 40.0)) is None

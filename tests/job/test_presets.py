"""Presets are complete, each figure has a source, and the names in a job resolve to them."""

import pytest
import yaml

from backend.engines.importing.readers import preset_of
from backend.job.cluster import Cluster
from backend.job.data_folder import data_folder
from backend.job.job import Model
from backend.job.mapping import parse_job
from backend.job.presets import clusters, gpus, models, resolve_gpu, resolve_model
from backend.job.problems import ProblemsError


def test_the_gpus_asked_for_are_there():
    assert {
        "v100-32g", "a100-40g", "a100-80g", "a800-80g", "h100-80g", "h800-80g", "h20-96g", "h200-141g", "l40s-48g",
        "l20-48g", "a6000-48g", "rtx4090-24g", "rtx5090-32g", "rtxpro6000-96g", "b200-180g", "cpu",
    } == gpus().keys()  # fmt: skip


@pytest.mark.parametrize("key", list(gpus()))
def test_every_gpu_has_a_source_and_less_memory_than_its_name_says(key):
    gpu = gpus()[key]
    assert gpu.source
    assert gpu.bf16_tflops > 0
    assert gpu.hbm_gb_per_s > 0
    if gpu.device == "cuda":
        assert gpu.memory_gib < float(key.split("-")[1].removesuffix("g"))


def test_only_volta_lacks_bf16():
    assert [key for key, gpu in gpus().items() if not gpu.supports_bf16] == ["v100-32g"]


@pytest.mark.parametrize("key", list(models()))
def test_every_model_names_its_sources(key):
    assert models()[key].sources
    assert models()[key].name


def test_there_are_60_models_and_no_name_or_repository_twice():
    assert len(models()) >= 60
    for names in ([model.name for model in models().values()], [model.hub for model in models().values() if model.hub]):
        assert len(set(names)) == len(names)


def test_the_template_of_a_model_is_one_of_llamafactory():
    known = yaml.safe_load((data_folder("presets") / "templates.yaml").read_text())["templates"]
    templates = {key: model.template for key, model in models().items() if model.template}
    assert {key: template for key, template in templates.items() if template not in known} == {}
    assert len(templates) >= 60


@pytest.mark.parametrize("key", [key for key, model in models().items() if model.hub])
def test_the_repository_of_a_model_names_its_preset(key):
    assert preset_of(models()[key].hub) == key


def test_the_first_cluster_is_four_nodes_of_eight_h100():
    assert (
        next(iter(clusters().values()))["cluster"] | {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8}
        == next(iter(clusters().values()))["cluster"]
    )


@pytest.mark.parametrize("key", list(clusters()))
def test_every_cluster_is_a_valid_part_of_a_job(key):
    job, problems = parse_job({"cluster": clusters()[key]["cluster"]})
    assert problems == []
    assert resolve_gpu(job.cluster).key == clusters()[key]["cluster"]["gpu"]


def test_a_gpu_can_be_described_in_the_job():
    described = {"memory_gib": 60, "bf16_tflops": 400, "hbm_gb_per_s": 3000}
    gpu = resolve_gpu(Cluster(gpu=described, nodes=1, gpus_per_node=8))
    assert (gpu.memory_gib, gpu.bf16_tflops, gpu.device) == (60, 400, "cuda")


@pytest.mark.parametrize(
    ("gpu", "code"),
    [("h900", "unknown_gpu"), ({}, "bad_gpu"), ({"memory_gib": -1, "bf16_tflops": 1, "hbm_gb_per_s": 1}, "bad_gpu")],
    ids=["unknown", "empty", "negative"],
)
def test_a_gpu_that_cannot_be_resolved_is_a_problem(gpu, code):
    with pytest.raises(ProblemsError) as raised:
        resolve_gpu(Cluster(gpu=gpu, nodes=1, gpus_per_node=8))
    assert [(problem.code, problem.field) for problem in raised.value.problems] == [(code, "cluster.gpu")]


def test_a_preset_goes_before_an_inline_configuration():
    inline = {"hidden_size": 64}
    assert resolve_model(Model(preset="qwen3-8b", hf_config=inline)) == resolve_model(Model(preset="qwen3-8b"))


def test_no_model_at_all_is_a_problem():
    with pytest.raises(ProblemsError) as raised:
        resolve_model(Model())
    assert raised.value.problems[0].code == "no_model"

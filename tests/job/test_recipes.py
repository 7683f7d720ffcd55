"""Every recipe is a legal job that fits, and its engine's files can be rendered."""

import pytest
import yaml

from backend.engines import CONFIG, ENGINES, export
from backend.engines.known_keys import keys_of
from backend.estimate import estimate
from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.job.presets import clusters, recipes
from backend.job.problems import errors
from backend.job.rules import check

KEYS = tuple(recipes())


def job_of(key: str) -> Job:
    job, problems = parse_job(recipes()[key]["job"])
    assert job is not None
    assert problems == []
    return job


@pytest.mark.parametrize("key", KEYS)
def test_a_recipe_is_legal_without_a_warning(key: str) -> None:
    assert [problem.code for problem in check(job_of(key)) if problem.severity != "note"] == []


@pytest.mark.parametrize("key", KEYS)
def test_a_recipe_fits_by_the_estimate(key: str) -> None:
    assert estimate(job_of(key)).fits


@pytest.mark.parametrize("key", KEYS)
def test_a_recipe_renders_keys_that_its_engine_takes(key: str) -> None:
    job = job_of(key)
    config = yaml.safe_load(export(job, placeholders=True)[CONFIG])
    assert config.keys() <= keys_of(job.engine).keys()


@pytest.mark.parametrize("key", KEYS)
def test_a_recipe_says_who_it_is_for_and_names_machines_of_a_known_kind(key: str) -> None:
    recipe, known = recipes()[key], {entry["cluster"]["gpu"] for entry in clusters().values()}
    assert recipe["source"]
    assert recipe["job"]["cluster"]["gpu"] in known


def test_the_asked_cases_are_there() -> None:
    jobs = [job_of(key) for key in KEYS]
    plans = {(job.parallel.tensor, job.parallel.pipeline, job.parallel.virtual_pipeline, job.global_batch)
             for job in jobs if job.model.preset == "qwen3-vl-8b" and job.world_size == 32}  # fmt: skip
    assert plans == {(1, 2, 3, 64), (1, 4, 1, 64), (1, 1, 1, 64)}
    assert {job.world_size for job in jobs if job.model.preset == "qwen3-30b-a3b"} == {8, 4}
    assert ("qwen3-32b", "llamafactory-zero3", 16) in {(j.model.preset, j.engine, j.world_size) for j in jobs}
    assert ("qwen2.5-7b", "lora", 1) in {(j.model.preset, j.training.method, j.cluster.nodes) for j in jobs}
    assert "qwen2.5-72b" in {job.model.preset for job in jobs}
    assert {job.engine for job in jobs} <= set(ENGINES)


def test_errors_of_a_recipe_would_be_found() -> None:
    mapping = {**recipes()["qwen3-vl-8b-pp2"]["job"], "parallel": {"tensor": 3}}
    job, _ = parse_job(mapping)
    assert job is not None
    assert errors(check(job))

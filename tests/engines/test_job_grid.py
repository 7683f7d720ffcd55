"""Random job files: a rule refuses each one, or its engine's own parser takes it and ends with the job's values."""

import pytest

from backend.engines import ENGINES, check_all
from backend.job.problems import errors
from benchmarks.job_grid import case_of, differences, draw, results, with_model
from tests.nodes import needs_node_environment
from tools.programs import MCORE_ADAPTER, SWIFT, mcore_adapter_source, swift_python

SEED = 7_000
FEW, MANY = 12, 40


@pytest.mark.parametrize("engine", ENGINES)
def test_an_equal_seed_gives_an_equal_job_and_other_seeds_give_others(engine: str) -> None:
    jobs = [draw(engine, SEED + number) for number in range(FEW)]
    assert jobs == [draw(engine, SEED + number) for number in range(FEW)]
    assert all(one != other for number, one in enumerate(jobs) for other in jobs[:number])
    assert {job.engine for job in jobs} == {engine}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_no_rule_refuses_can_be_rendered(engine: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    accepted = [job for number in range(FEW) if not errors(check_all(job := draw(engine, SEED + number)))]
    assert accepted
    for job in accepted:
        assert "config.yaml" in case_of(with_model(job, tmp_path_factory.mktemp("job")))["files"]


def test_a_value_that_a_program_changed_is_found() -> None:
    config = {"seed": 7, "lr": "1e-5", "dataset": "a, b", "cutoff_len": 100, "packing": True, "only_here": 1}
    same = {"seed": 7.0, "lr": 1e-5, "dataset": ["a", "b"], "cutoff_len": 99, "packing": True}
    assert differences(config, same) == {}
    assert differences(config, {**same, "seed": 8, "packing": False}) == {"seed": (7, 8), "packing": (True, False)}
    assert differences({**config, "packing": False}, {**same, "packing": False}) == {"cutoff_len": (100, 99)}


@pytest.mark.e2e
@pytest.mark.engines
@needs_node_environment
@pytest.mark.parametrize("engine", ENGINES)
def test_the_program_refuses_nothing_that_the_rules_accept_and_ends_with_the_values_of_the_job(engine: str) -> None:
    if engine == "llamafactory-megatron" and not mcore_adapter_source():
        pytest.skip(f"{MCORE_ADAPTER} does not name mcore_adapter's src folder (github.com/alibaba/ROLL, not on PyPI)")
    if engine.startswith("swift-") and not swift_python():
        pytest.skip(f"no ms-swift here: `make engines` installs it, or {SWIFT} names a Python that has it")
    found = results([draw(engine, SEED + number) for number in range(MANY)])
    assert [(result.error, result.different) for result in found if result.error or result.different] == []
    assert any(result.refused_by for result in found)
    assert any(not result.refused_by for result in found)

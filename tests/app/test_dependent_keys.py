"""Keys that depend on other keys follow them: the batch of a learning rate, and the source of a number of samples."""

import pytest

from app.text.plans import all_plans
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.plans import plans_of


def training(services):
    return read(services.draft.job_mapping(), services.home).job.training


def noted(services):
    problems = read(services.draft.job_mapping(), services.home).problems
    return [problem for problem in problems if problem.code == "learning_rate_batch"]


def test_a_rate_belongs_to_the_batch_that_was_there_before_the_first_change(services):
    change(services, {"training.gradient_accumulation_steps": 16})
    assert training(services).learning_rate_batch == 64
    (result,) = noted(services)
    assert (result.values["batch"], result.values["linear"], result.values["root"]) == (128, "4e-5", "2.83e-5")
    change(services, {"training.micro_batch_size": 4})
    assert noted(services)[0].values["growth"] == "8"
    change(services, {"training.micro_batch_size": 1, "training.gradient_accumulation_steps": 8})
    assert noted(services) == []


def test_a_plan_that_changes_the_batch_is_noted_too(services):
    change(services, {"engine": "llamafactory-zero3", "parallel.tensor": 1, "training.gradient_accumulation_steps": 8})
    assert noted(services)[0].values["batch"] == 256


def test_a_rate_that_is_typed_belongs_to_the_batch_at_hand(services):
    change(services, {"training.gradient_accumulation_steps": 16})
    change(services, {"training.learning_rate": 1e-5})
    assert (training(services).learning_rate_batch, noted(services)) == (128, [])


@pytest.mark.parametrize(("choice", "rate"), [("linear", 4e-5), ("root", 2.83e-5), ("keep", 2e-5)])
def test_every_choice_settles_it(services, choice, rate):
    change(services, {"training.gradient_accumulation_steps": 16})
    change(services, noted(services)[0].choices[choice])
    assert (training(services).learning_rate, training(services).learning_rate_batch, noted(services)) == (
        rate,
        128,
        [],
    )


def test_the_default_rate_is_for_no_batch_while_the_machines_are_described(services):
    change(services, {"cluster.nodes": 2})
    assert training(services).learning_rate_batch is None
    change(services, {"training.learning_rate": 3e-5})
    change(services, {"cluster.nodes": 4})
    assert (training(services).learning_rate_batch, noted(services)[0].values["batch"]) == (32, 64)


def test_another_job_brings_its_own(services):
    change(services, {"training": {"learning_rate": 1e-4, "gradient_accumulation_steps": 2}, "parallel": {}})
    assert training(services).learning_rate_batch is None


@pytest.mark.parametrize("edit", [{"training.samples": 5}, {"training.dataset": "b"}, {"training.dataset_dir": "/e"}])
def test_a_number_that_was_read_is_known_as_such_until_it_or_the_data_changes(services, edit):
    change(services, {"training.dataset": "a", "training.dataset_dir": "/d"})
    change(services, {"training.samples": 1000, "training.samples_from": "10.0.0.1: a"})
    change(services, {"training.dataset": "a", "training.cutoff_len": 2048})
    assert training(services).samples_from == "10.0.0.1: a"
    change(services, edit)
    assert training(services).samples_from is None


def test_while_sizes_allow_no_batch_the_plans_keep_the_one_before(services):
    """The user types another size, digit by digit. The table must not plan for a batch in between."""
    for tensor in (3, 64):
        change(services, {"parallel.tensor": tensor})
        reading = read(services.draft.job_mapping(), services.home)
        assert (reading.job.global_batch, noted(services)) == (0, [])
        assert all_plans(reading.job).global_batch == 64
        assert "64" in plans_of(reading, "en")["why"]
    change(services, {"parallel.tensor": 4})
    assert (training(services).learning_rate_batch, noted(services)) == (64, [])


def test_the_template_of_a_preset_follows_the_choice_of_the_model(services):
    change(services, {"training.template": None})
    change(services, {"model.preset": "gemma-3-12b"})
    assert training(services).template == "gemma3"
    change(services, {"model.preset": "qwen3-8b"})
    assert training(services).template == "qwen3"
    change(services, {"model.preset": "olmo-2-7b"})
    assert training(services).template is None


def test_a_template_that_the_user_chose_stays(services):
    change(services, {"model.preset": "qwen3-8b", "training.template": "qwen3_nothink"})
    change(services, {"model.preset": "gemma-3-12b"})
    assert training(services).template == "qwen3_nothink"


@pytest.mark.parametrize(
    "other", [{"training.stage": "pt"}, {"engine": "swift-megatron"}], ids=["pre-training", "ms-swift"]
)
def test_a_job_that_needs_no_template_gets_none(services, other):
    change(services, {"training.template": None, **other})
    change(services, {"model.preset": "qwen3-8b"})
    assert training(services).template is None

"""One click on the button of a problem leaves no error that the click brings."""

import random
from collections.abc import Mapping

import pytest

from backend.job.mapping import with_values
from backend.job.problems import errors
from backend.job.rules.following import with_following_edits
from tests.job.page import check, identities
from tests.job.rule_cases import CASES, ONLY_THE_USER_KNOWS
from tests.job.rule_jobs import DENSE, GEMMA_2, GEMMA_4, GPT_OSS, INTERNLM_CHAT, PACKS, job_of

NEAT_FA3 = {"engine": "llamafactory-zero3", **PACKS, "extra": {"neat_packing": True, "flash_attn": "fa3"}}
TWISTS = {
    "as it is": {},
    "old GPU": {"cluster.gpu": "v100-32g"},
    "old GPU, fp16": {"cluster.gpu": "v100-32g", "training.precision": "fp16"},
    "new GPU": {"cluster.gpu": "b200-180g"},
    "CPU": {"cluster.gpu": "cpu"},
    "LoRA": {"training.method": "lora"},
    "QLoRA": {"training.method": "qlora"},
    "reward model": {"training.stage": "rm"},
    "packed pretraining": {"training.stage": "pt", **PACKS},
}


def whole(job):
    return with_following_edits(job, check(job), check)


def buttons_of(problem):
    return [edit for edit in (problem.edit, *problem.choices.values()) if edit]


def assert_buttons_end(job):
    known = identities(errors(check(job)))
    for problem in whole(job):
        for edit in buttons_of(problem):
            after = check(with_values(job, edit))
            assert (problem.code, problem.field) not in identities(after), edit
            brought = {code for code, _ in identities(errors(after)) - known}
            assert brought <= ONLY_THE_USER_KNOWS, (problem.code, edit)


def merged(one: Mapping, other: Mapping):
    extra = {**one.get("extra", {}), **other.get("extra", {})}
    return {**one, **other, **({"extra": extra} if extra else {})}


@pytest.mark.parametrize("twist", TWISTS.values(), ids=TWISTS)
def test_every_button_of_every_rule_ends(twist):
    for base, values, _ in CASES:
        assert_buttons_end(job_of(base, merged(values, twist)))


def test_buttons_of_jobs_that_break_two_rules_end():
    draw = random.Random(1)
    for _ in range(700):
        (base, values, _), (other_base, others, _) = draw.choice(CASES), draw.choice(CASES)
        assert_buttons_end(job_of(draw.choice((base, other_base)), merged(values, others)))


def only(job, code):
    (found,) = (problem for problem in whole(job) if problem.code == code)
    return found


def test_another_engine_comes_with_the_values_that_it_needs():
    job = job_of(DENSE, {"engine": "swift-megatron", "cluster.gpu": "cpu", **PACKS})
    assert only(job, "swift_on_cpu").edit == {
        "engine": "swift-ddp", "training.precision": "fp32", "training.packing": False,
    }  # fmt: skip


def test_the_engine_stays_and_the_method_follows():
    job = job_of(INTERNLM_CHAT, {"engine": "llamafactory-ddp", "training.method": "partial"})
    assert only(job, "internvl_own_form").edit == {"engine": "swift-ddp", "training.method": "full"}


def test_two_values_that_ask_for_each_other_have_no_button():
    job = job_of(GPT_OSS, {"engine": "llamafactory-zero3", "training.method": "lora", "cluster.gpu": "v100-32g"})
    assert not buttons_of(only(job, "no_bf16"))


@pytest.mark.parametrize(
    ("base", "gpu", "chosen"),
    [(DENSE, "h100-80g", "fa2"), (GEMMA_4, "h100-80g", "sdpa"), (DENSE, "v100-32g", "sdpa")],
)
def test_neat_packing_gets_an_attention_that_runs(base, gpu, chosen):
    job = job_of(base, {**NEAT_FA3, "cluster.gpu": gpu, "training.precision": "fp16"})
    (found,) = (problem for problem in check(job) if problem.code == "neat_packing_with_kernel")
    assert (found.values["case"], found.edit["extra"]["flash_attn"]) == (
        "sdpa" if chosen == "sdpa" else "fa3", chosen,
    )  # fmt: skip


def test_an_old_gpu_gets_an_attention_that_bounds_scores():
    edits = {"cluster.gpu": "v100-32g", "training.precision": "fp16"}
    for engine, key, value in (("llamafactory-zero3", "flash_attn", "disabled"), ("swift-zero3", "attn_impl", "eager")):
        asked = {"extra": {key: "fa2" if key == "flash_attn" else "flash_attn"}}
        (found,) = (problem for problem in check(job_of(GEMMA_2, {"engine": engine, **edits, **asked}))
                    if problem.code == "flash_attention_not_on_gpu")  # fmt: skip
        assert found.edit["extra"][key] == found.values["chosen"] == value

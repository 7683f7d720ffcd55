"""The draft as the page reads it."""

import pytest

from app.wizard.draft_state import read
from backend.job.problems import errors


def test_a_button_carries_the_edits_that_follow(tmp_path):
    draft = {
        "engine": "swift-megatron",
        "cluster": {"gpu": "cpu", "nodes": 2, "gpus_per_node": 1},
        "model": {"preset": "qwen3-8b"},
        "training": {"packing": True},
    }
    edits = {problem.code: dict(problem.edit) for problem in read(draft, tmp_path).problems}
    assert edits["swift_on_cpu"] == {"engine": "swift-ddp", "training.precision": "fp32", "training.packing": False}


@pytest.mark.parametrize(
    ("extra", "after"),
    [
        ({"foo_bar_q": 1, "zzz_yyy": 2}, {"foo_bar_q": {"zzz_yyy": 2}, "zzz_yyy": {"foo_bar_q": 1}}),
        (
            {"max_grad_nrom": 0.5, "label_smoothing_factr": 0.1},
            {
                "max_grad_nrom": {"max_grad_norm": 0.5, "label_smoothing_factr": 0.1},
                "label_smoothing_factr": {"max_grad_nrom": 0.5, "label_smoothing_factor": 0.1},
            },
        ),
        (
            {"mix_strategy": "interleve_under", "flash_attn": "fa22"},
            {
                "mix_strategy": {"mix_strategy": "interleave_under", "flash_attn": "fa22"},
                "flash_attn": {"mix_strategy": "interleve_under", "flash_attn": "fa2"},
            },
        ),
        (
            {"label_smoothing_factor": "one", "adam_epsilon": "small"},
            {
                "label_smoothing_factor": {"adam_epsilon": "small"},
                "adam_epsilon": {"label_smoothing_factor": "one"},
            },
        ),
    ],
    ids=["unknown", "unknown, with a similar key", "no choice", "wrong type"],
)
def test_each_of_several_problems_with_one_code_has_a_button_of_its_own(extra, after, tmp_path):
    draft = {"engine": "llamafactory-zero3", "cluster": {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8},
             "model": {"preset": "qwen3-8b"}, "extra": extra}  # fmt: skip
    state = read(draft, tmp_path)
    found = {problem.field: problem for problem in (*state.problems, *state.missing)}
    assert {key: found[f"extra.{key}"].edit.get("extra") for key in after} == after


def test_the_button_of_a_range_follows_the_rules_and_leaves_other_fields(tmp_path):
    draft = {"engine": "llamafactory-megatron", "cluster": {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8},
             "model": {"preset": "qwen3-30b-a3b"}, "parallel": {"expert": 100_000, "tensor": 100_000}}  # fmt: skip
    edits = {problem.field: dict(problem.edit) for problem in read(draft, tmp_path).problems}
    assert {key: list(edit) for key, edit in edits.items()} == {key: [key] for key in edits}
    values = {key.removeprefix("parallel."): value for edit in edits.values() for key, value in edit.items()}
    assert not errors(read({**draft, "parallel": values}, tmp_path).problems)

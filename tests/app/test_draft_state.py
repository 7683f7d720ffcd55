"""The draft as the page reads it."""

from app.wizard.draft_state import read


def test_a_button_carries_the_edits_that_follow(tmp_path):
    draft = {
        "engine": "swift-megatron",
        "cluster": {"gpu": "cpu", "nodes": 2, "gpus_per_node": 1},
        "model": {"preset": "qwen3-8b"},
        "training": {"packing": True},
    }
    edits = {problem.code: dict(problem.edit) for problem in read(draft, tmp_path).problems}
    assert edits["swift_on_cpu"] == {"engine": "swift-ddp", "training.precision": "fp32", "training.packing": False}

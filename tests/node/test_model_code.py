"""A model's own code is read, not run: whether transformers' Trainer would take its loss for a share of a step's."""

import json
from pathlib import Path

import pytest

from backend.node.checks.model_code import undivided_loss

MINE = (Path(__file__).parents[1] / "e2e" / "own_code" / "modeling_mine.py").read_text()
NAME = "modeling_mine.MineForCausalLM"
SIGNATURE = "labels: torch.Tensor | None = None\n"
OPEN = MINE.replace(SIGNATURE, "labels: torch.Tensor | None = None, **kwargs: Any\n")
"""The same model with a `forward` that takes any keyword."""
FIELD = "    config_class = MineConfig\n"
DECLARED = OPEN.replace(FIELD, f"{FIELD}    accepts_loss_kwargs = False\n")
"""The same model, which says that it divides no loss."""
BASE = "class MineForCausalLM(PreTrainedModel, GenerationMixin):"
HOOK = "self.loss_function(logits, labels, **kwargs)"


def model(folder: Path, code: str, reference: object = NAME) -> str:
    """Write a model with its own code and return what is read from it."""
    (folder / "modeling_mine.py").write_text(code)
    auto_map = {"AutoConfig": "configuration_mine.MineConfig", "AutoModelForCausalLM": reference}
    (folder / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": auto_map}))
    return undivided_loss(str(folder))


def test_a_mean_loss_of_a_forward_that_takes_any_keyword_is_named(tmp_path: Path) -> None:
    assert OPEN != MINE
    assert model(tmp_path, OPEN) == NAME
    layer = OPEN.replace("functional.cross_entropy(", "nn.CrossEntropyLoss()(")
    assert model(tmp_path, layer) == NAME
    inherited = OPEN.replace(BASE, BASE.replace("MineForCausalLM", "MineBase"))
    assert model(tmp_path, f"{inherited}\n\nclass MineForCausalLM(MineBase):\n    pass\n") == NAME


@pytest.mark.parametrize(
    "code",
    [
        MINE,
        DECLARED,
        OPEN.replace(FIELD, "    accepts_loss_kwargs: bool = False\n"),
        OPEN.replace("ignore_index=IGNORED)", "ignore_index=IGNORED, reduction='sum') / kwargs['num_items_in_batch']"),
        OPEN.replace("ignore_index=IGNORED)", f"ignore_index=IGNORED) if self.plain else {HOOK}"),
        OPEN.replace("functional.cross_entropy(", "self.some_loss("),
        OPEN.replace("def forward(\n", "def call(\n"),
        OPEN.replace("class Mine", "class Other"),
        "def forward(:",
        "(" * 5000,
        "\0",
    ],
    ids=["named keywords", "declared", "declared with a type", "divided", "transformers' loss", "another loss",
         "no forward", "no class", "no Python", "nested too deeply", "a null byte"],
)  # fmt: skip
def test_a_loss_that_is_divided_or_cannot_be_told_is_not_named(tmp_path: Path, code: str) -> None:
    assert model(tmp_path, code) == ""


@pytest.mark.parametrize("reference", [f"someone/else--{NAME}", "../modeling_mine.MineForCausalLM", 1, None])
def test_only_code_of_the_folder_itself_is_read(tmp_path: Path, reference: object) -> None:
    assert model(tmp_path, OPEN, reference) == ""


def test_a_model_with_a_processor_is_left_out_because_llamafactory_divides_its_loss(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert model(tmp_path, OPEN) == ""


@pytest.mark.parametrize("config", ["{", "[]", '{"auto_map": ["modeling_mine"]}', "{}"])
def test_a_config_without_own_code_names_nothing(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert undivided_loss(str(tmp_path)) == ""
    assert undivided_loss(str(tmp_path / "none")) == ""

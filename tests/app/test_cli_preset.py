"""`megaboard preset`: job files are stored by name, listed, shown, replaced on request, and deleted."""

import io
import json

import pytest

from app.main import main
from backend.job.presets import recipes

JOB = "name: mine\ncluster: {gpu: h100-80g, nodes: 1, gpus_per_node: 8}\nmodel: {hf_config: model.json}\n"
SHAPE = """{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
"num_attention_heads": 4, "vocab_size": 512}"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "model.json").write_text(SHAPE)
    return tmp_path


def preset(*arguments):
    return main(["preset", *map(str, arguments)])


def test_a_job_file_is_saved_whole_and_can_be_planned_from_anywhere(home, capsys, monkeypatch):
    assert preset("save", "small", home / "job.yaml") == 0
    assert preset("list") == 0
    assert capsys.readouterr().out == "small\n"
    assert preset("show", "small") == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(capsys.readouterr().out))
    monkeypatch.chdir(home / "home")
    assert main(["estimate", "-", "--json"]) == 0


def test_a_taken_name_is_refused_without_replace(home, capsys):
    preset("save", "a", home / "job.yaml")
    assert preset("save", "a", home / "job.yaml") == 2
    assert "already a preset named a" in capsys.readouterr().err
    assert preset("save", "a", home / "job.yaml", "--replace") == 0


def test_a_missing_or_unreadable_file_is_wrong_input(home, capsys):
    (home / "job.yaml").write_text("cluster: {nodes: 1}\n")
    assert preset("save", "a", home / "job.yaml") == 2
    assert preset("show", "a") == preset("delete", "a") == preset("delete", "../a") == 2
    assert preset("list") == 0
    assert capsys.readouterr().out == ""


def test_a_preset_is_deleted(home, capsys):
    preset("save", "a", home / "job.yaml")
    assert preset("delete", "a") == 0
    preset("list")
    assert capsys.readouterr().out == ""
    audited = map(json.loads, (home / "home/audit.jsonl").read_text().splitlines())
    assert [(line["action"], line["name"]) for line in audited] == [("save_preset", "a"), ("delete_preset", "a")]


def test_a_job_file_with_a_secret_is_not_saved(home, capsys):
    (home / "job.yaml").write_text(f"{JOB}environment: {{HF_TOKEN: of-mine}}\n")
    assert preset("save", "a", home / "job.yaml") == 2
    preset("list")
    assert capsys.readouterr().out == ""


def test_the_recipes_of_the_page_can_be_listed_shown_and_planned(home, capsys, monkeypatch):
    assert preset("list", "--recipes") == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == list(recipes())
    assert preset("show", "qwen3-30b-a3b-4-gpus-lora") == 0
    shown = capsys.readouterr().out
    assert "name: qwen3-30b-a3b-4-gpus-lora" in shown
    monkeypatch.setattr("sys.stdin", io.StringIO(shown))
    assert main(["estimate", "-", "--json"]) == 0


def test_an_own_preset_hides_a_recipe_with_the_same_name(home, capsys):
    preset("save", "qwen3-32b-zero3", home / "job.yaml")
    capsys.readouterr()
    preset("show", "qwen3-32b-zero3")
    assert "name: mine" in capsys.readouterr().out

"""What a model's folder lacks is named, and log-ins are found without reading a key."""

import json
from pathlib import Path

import pytest

from backend.node.checks.logins import has_wandb_login
from backend.node.checks.model_folder import fault_of_config, lacking_weights, unmatched_targets

NAMES = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.gate_proj.weight", "lm_head.weight")


def test_a_config_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    assert fault_of_config(str(tmp_path)) is None  # Another check names it.
    file = tmp_path / "config.json"
    contents = {b'{"model_type": "qwen3"}': None, b'{"model_type': "config_truncated", b"\xff\xfe{": "config_not_text"}
    for content, expected in contents.items():
        file.write_bytes(content)
        assert (fault_of_config(str(tmp_path)) or {}).get("fault") == expected
    file.unlink()
    file.mkdir()
    assert (fault_of_config(str(tmp_path)) or {}).get("fault") == "config_unreadable"


def test_weight_files_that_are_missing_or_pointers_are_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"0" * 2048)
    (tmp_path / "model-3.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    assert lacking_weights(str(tmp_path)) == ["model-2.safetensors", "model-3.safetensors"]
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert lacking_weights(str(tmp_path)) == ["model.safetensors.index.json"]
    assert lacking_weights(str(tmp_path / "none")) == []


def test_lora_targets_that_no_module_has_are_named_from_the_index(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(NAMES, "a")}))
    targets = ["q_proj", "proj", "c_attn", "mlp.gate_proj", "head"]
    assert unmatched_targets(str(tmp_path), targets) == ["proj", "c_attn", "head"]


def test_lora_targets_are_compared_with_the_header_of_a_single_file(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {}, **{name: {} for name in NAMES}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert unmatched_targets(str(tmp_path), ["W_pack", "gate_proj"]) == ["W_pack"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, (5).to_bytes(8, "little") + b"[1,2]"])
def test_weights_without_names_leave_no_target_unmatched(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert unmatched_targets(str(tmp_path), ["q_proj"]) == []


def test_a_log_in_of_wandb_is_a_variable_or_an_entry_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not has_wandb_login()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password x\n")
    assert has_wandb_login()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8443")
    assert not has_wandb_login()
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert has_wandb_login()

"""A config.json from the hub, through the real huggingface_hub and a hub on this machine."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from huggingface_hub import constants, try_to_load_from_cache

from app.main import main
from app.model_config import MAXIMUM_BYTES, from_hub, read_config
from backend.job.presets import models
from backend.job.problems import ProblemsError
from tests.waiting import wait_for
from tools.hub import HOSTILE, hub

QWEN = json.dumps(dict(models()["qwen3-8b"].hf_config)).encode()
FILES = {
    "Qwen/Qwen3-8B": QWEN,
    "someone/strange": b'{"model_type": "mamba9", "hidden_size": 8}',
    "someone/huge": b" " * (MAXIMUM_BYTES + 1),
    "someone/words": b"not json",
    "someone/truncated": QWEN[:200],
    "someone/latin": b'{"model_type": "\xe9"}',
}


def point_at(address, monkeypatch):
    """Set the address of the hub, as HF_ENDPOINT does when huggingface_hub is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + template[template.index("/{repo_id}") :])


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """Yield a hub that huggingface_hub uses, and an empty cache."""
    with hub(FILES) as (address, request):
        point_at(address, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield request


def refused(model_id):
    with pytest.raises(ProblemsError) as caught:
        read_config(from_hub(model_id), model_id)
    [problem] = caught.value.problems
    assert problem.field == "model.hf_config"
    return problem


def test_a_model_id_becomes_the_shape_of_its_model(ours):
    config, shape = read_config(from_hub("Qwen/Qwen3-8B"), "Qwen/Qwen3-8B")
    assert config == json.loads(QWEN)
    assert (shape.model_type, shape.layers) == ("qwen3", 36)
    assert {path.partition(" ")[2] for path in ours if "resolve" in path} == {"/Qwen/Qwen3-8B/resolve/main/config.json"}


@pytest.mark.parametrize(
    ("model_id", "code"),
    [
        ("someone/gated", "model_gated"),
        ("someone/private", "model_not_found"),
        ("nobody/nothing", "model_not_found"),
        ("someone/adapter", "no_model_config"),
        ("someone/broken", "hub_unreachable"),
        ("someone/huge", "bad_model_config"),
        ("someone/words", "bad_model_config"),
        ("someone/latin", "bad_model_config"),
        ("someone/truncated", "bad_model_config"),
    ],
)
def test_an_unknown_model_is_refused_with_the_reason(ours, model_id, code):
    assert refused(model_id).code == code


def test_a_file_that_is_too_large_is_not_downloaded(ours):
    refused("someone/huge")
    assert not [path for path in ours if path.startswith("GET") and "huge" in path]


@pytest.mark.parametrize(
    "model_id",
    ["", "https://example.com/a", "//example.com/a", "../../etc/passwd", "a/../b", "a/b/c", "a/b?c", "a b", "a/b\n",
     "a/" + "b" * 200, "a--b/c", "-a/b", "a/.b"],
)  # fmt: skip
def test_an_invalid_id_is_never_requested(ours, model_id):
    assert refused(model_id).code == "bad_model_id"
    assert ours == []


def test_a_hub_that_fails_gets_one_request(ours):
    assert refused("someone/broken").values["reason"] == "HTTP 503"
    assert len([path for path in ours if "broken" in path]) == 1


def test_without_a_network_the_cached_file_is_used(ours, monkeypatch):
    fetched = from_hub("Qwen/Qwen3-8B")
    point_at("http://127.0.0.1:9", monkeypatch)
    assert from_hub("Qwen/Qwen3-8B") == fetched
    assert refused("Qwen/Qwen3-4B").code == "hub_unreachable"


def test_offline_mode_is_respected_and_named(ours, monkeypatch):
    fetched = from_hub("Qwen/Qwen3-8B")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(ours)
    assert from_hub("Qwen/Qwen3-8B") == fetched
    assert refused("Qwen/Qwen3-4B").code == "hub_offline"
    assert len(ours) == before


def test_a_hub_that_does_not_answer_times_out(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        point_at(f"http://127.0.0.1:{server.getsockname()[1]}", monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(ProblemsError) as caught:
            from_hub("Qwen/Qwen3-8B", timeout_s=0.1)
    assert caught.value.problems[0].code == "hub_unreachable"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_hub_meets_a_deadline_and_a_size_limit(ours, name):
    """This holds for any announced size and any way of sending."""
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(ProblemsError) as caught:
            from_hub(f"someone/{name}", total_s=0.5 if "dripping" in name else 60.0)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    [problem] = caught.value.problems
    expected = {"dripping": "hub_unreachable", "dripping-headers": "hub_unreachable"}
    assert problem.code == expected.get(name, "bad_model_config")
    assert time.monotonic() - started < 50
    assert (len([path for path in ours if path.startswith("GET")]) == 0) is (name in ("endless", "dripping-headers"))
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "hub"])


def test_a_file_that_was_fetched_before_is_not_fetched_again(ours):
    assert from_hub("Qwen/Qwen3-8B") == from_hub("Qwen/Qwen3-8B")
    assert len([path for path in ours if path.startswith("GET")]) == 1


def test_huggingface_hub_finds_the_fetched_file_in_its_cache(ours, tmp_path):
    fetched = from_hub("Qwen/Qwen3-8B")
    assert Path(try_to_load_from_cache("Qwen/Qwen3-8B", "config.json")).read_text() == fetched


def test_a_cache_that_cannot_be_written_is_no_error(ours, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert json.loads(from_hub("Qwen/Qwen3-8B")) == json.loads(QWEN)


def test_a_deeply_nested_configuration_is_refused(ours):
    deep = "[" * 100 + "]" * 100  # The parser would accept it, but the writer of the job file would not.
    for text in ("[" * 100_000, f'{{"model_type": "qwen3", "x": {deep}}}'):
        with pytest.raises(ProblemsError) as caught:
            read_config(text, "x")
        assert caught.value.problems[0].code == "bad_model_config"


@pytest.mark.slow
def test_the_command_prints_a_configuration_that_a_job_file_accepts(tmp_path):
    """It runs in a process of its own, because huggingface_hub reads HF_ENDPOINT when it is imported."""
    with hub(FILES) as (address, _):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment = {**variables, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "MEGABOARD_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "app.main", "--lang", "en", "model", "Qwen/Qwen3-8B"]
        folder = Path(__file__).parents[2]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=folder)
    assert "8.191 billion parameters" in done.stderr
    assert json.loads(done.stdout) == json.loads(QWEN)


def test_the_command_prints_an_architecture_without_an_estimate_and_says_so(ours, capsys):
    assert main(["--lang", "en", "model", "someone/strange"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads(FILES["someone/strange"])
    assert "mamba9" in printed.err


def test_a_job_file_accepts_the_folder_of_a_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes(QWEN)
    job = {"cluster": {"gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8}, "model": {"hf_config": "model"}}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    assert main(["estimate", str(tmp_path / "job.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["parameters"] == 8190735360

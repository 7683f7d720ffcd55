"""Fetching data into the draft in a real browser, from a hub on this machine and from real SSH nodes."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.job.presets import models
from tests.nodes import needs_node_environment, ssh_nodes
from tests.ui.browser import begin_anew, box, expect, go, needs_chromium, problems, until
from tools.browser import Server, logged_in, served
from tools.hub import hub
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.ui, needs_chromium]

CONFIG = json.dumps(dict(models()["qwen3-30b-a3b"].hf_config)).encode()


UNKNOWN = {
    "model_type": "persimmon", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 320,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
}  # fmt: skip
"""A configuration that no family describes. transformers knows its class."""
BROKEN = b'{"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": "4096"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("fetch")
    configs = {
        "Qwen/Qwen3-30B-A3B": CONFIG,
        "someone/odd": BROKEN,
        "someone/strange": b'{"model_type": "mamba9"}',
        "someone/new": json.dumps(UNKNOWN).encode(),
    }
    with hub(configs) as (address, _):
        hub_only = {"HF_ENDPOINT": address, "HF_HOME": str(home / "hub"), "HF_HUB_OFFLINE": "0"}
        with served(home, **hub_only) as server:
            yield server


@pytest.fixture(scope="module")
def page(server) -> Iterator[Any]:
    with logged_in(server) as page:
        yield page


@pytest.fixture(autouse=True)
def _anew(page) -> None:
    begin_anew(page)


def test_a_model_of_the_hub_is_fetched_by_its_id(page, server):
    go(page, server, "model")
    answer = page.locator("#place-fetch_model .mb-fetch-answer")
    page.fill(".mb-fetch-id", "someone/odd")
    page.click('[data-fetch="hub"]')
    expect(answer).to_contain_text("hidden_size")
    assert page.evaluate("Megaboard.wizard.payload().data.model.name").startswith("Qwen3-VL")
    page.fill(".mb-fetch-id", "someone/strange")
    page.click('[data-fetch="hub"]')
    expect(problems(page, "model.hf_config")).to_contain_text("mamba9")
    page.fill(".mb-fetch-id", "Qwen/Qwen3-30B-A3B")
    page.keyboard.press("Enter")
    expect(answer).to_contain_text("qwen3_moe")
    until(page, "b.data.model.facts.some(([name, value]) => name === 'experts' && value === 128)")
    expect(box(page, "model.hf_config")).to_have_value(json.dumps(json.loads(CONFIG), indent=2))
    assert page.input_value(".mb-fetch-id") == "Qwen/Qwen3-30B-A3B"


def test_what_a_node_has_is_read_once_its_key_is_confirmed(page, server, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba9"}')
    with ssh_nodes(tmp_path / "nodes", nodes=2) as nodes:
        go(page, server, "hardware")
        page.click('[data-fetch="memory"]')
        expect(page.locator("#place-fetch_memory .mb-fetch-answer")).to_contain_text("Fill in first")
        lines = [f"{host.user}@{host.address}:{host.port} key={host.identity_file}" for host in nodes.hosts()]
        box(page, "cluster.hosts.lines").fill("\n".join(lines))
        until(page, "b.data.hosts?.length === 2")
        page.click('[data-fetch="memory"]')
        page.click('#place-fetch_memory [data-act="accept"]')
        expect(page.locator("#place-fetch_memory .mb-fetch-answer")).to_contain_text("Nodes read: 2")
        assert float(box(page, "cluster.host_memory_gib").input_value()) > 0.1
        expect(box(page, "cluster.nodes")).to_have_value("2")
        expect(page.locator("#place-fetch_memory .mb-found tbody tr")).to_have_count(2)
        go(page, server, "model")
        box(page, "model.path").fill(str(tmp_path))
        until(page, "!b.problems.concat().some((one) => one.at === 'model.path')")
        answer = page.locator("#place-fetch_model .mb-fetch-answer")
        page.click('[data-fetch="node"]')
        expect(answer).to_contain_text("mamba9")
        (tmp_path / "config.json").write_bytes(CONFIG)
        page.click('[data-fetch="node"]')
        expect(answer).to_contain_text("qwen3_moe")
        go(page, server, "hardware")
        box(page, "cluster.environments.llamafactory.python").fill(sys.executable)
        until(page, "b.data.hosts?.length === 2")
        go(page, server, "training", "zh")
        page.click('[data-fetch="samples"]')
        expect(page.locator("#place-fetch_samples .mb-fetch-answer .mb-apply")).to_have_count(2)
        (tmp_path / "dataset_info.json").write_text('{"few": {"file_name": "few.jsonl"}}')
        (tmp_path / "few.jsonl").write_text('{"instruction": "?"}\n' * 640)
        box(page, "training.dataset_dir").fill(str(tmp_path))
        box(page, "training.dataset").fill("few")
        until(page, "!b.problems.some((one) => one.code === 'needed_for_launch' && one.at === 'training.dataset')")
        page.click('[data-fetch="samples"]')
        expect(box(page, "training.samples")).to_have_value("640")
        expect(page.locator('#place-steps [data-fact="samples"]')).to_contain_text("读自 127.0.0.1")
        expect(page.locator('#place-steps [data-fact="each"] b')).to_have_text("20")
        box(page, "training.dataset").fill("other")
        expect(page.locator('#place-steps [data-fact="samples"]')).to_contain_text("未经节点统计")


@pytest.mark.engines
@needs_node_environment
def test_a_model_of_an_unknown_family_is_planned_after_a_node_built_it(page, server, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(UNKNOWN))
    with ssh_nodes(tmp_path / "nodes", nodes=1) as nodes:
        host = nodes.hosts()[0]
        machines = {
            "hosts": [{"address": host.address, "port": host.port, "user": host.user,
                       "identity_file": host.identity_file}],
            "gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8,
            "environments": {"llamafactory": {"python": str(NODE_PYTHON)}},
        }  # fmt: skip
        begin_anew(page, {"cluster": machines, "model": {"path": str(tmp_path)}, "engine": "llamafactory-ddp"})
        go(page, server, "model")
        page.fill(".mb-fetch-id", "someone/new")
        page.click('[data-fetch="hub"]')
        until(page, "b.problems.some((one) => one.code === 'model_not_estimated')")
        page.click('[data-fetch="profile"]')
        page.click('#place-fetch_model [data-act="accept"]')
        answer = page.locator("#place-fetch_model .mb-fetch-answer")
        expect(answer).to_contain_text("PersimmonForCausalLM")
        until(page, "b.summary.parameters === 158720 && !b.problems.some((one) => one.code === 'model_not_estimated')")
        expect(page.locator('[data-fetch="profile"]')).to_be_hidden()
        go(page, server, "plan")
        until(page, "b.summary.fits")
        go(page, server, "model")
        box(page, "model.hf_config").fill(json.dumps({**UNKNOWN, "vocab_size": 640}))
        until(page, "b.problems.some((one) => one.code === 'model_not_estimated' && /another/.test(one.message))")
        page.click('[data-fetch="node"]')
        until(page, "b.summary.parameters === 158720 && b.fetched.kind === 'node'")

"""Data that a step fetches: a config.json and the nodes' memory. Users confirm host keys by fingerprint."""

import json
from types import SimpleNamespace

import pytest

from app.model_config import MAXIMUM_BYTES
from app.services import Draft
from app.text import LANGUAGES, render_problem
from app.text.alike import as_one, by_likeness
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.sources import fetch
from backend.cluster.node import NodeError, Result
from backend.cluster.ssh.host_keys import HostKey, UnknownHostKey
from backend.job.presets import gpus, models
from backend.runs.controller import Controller
from backend.runs.store.store import Store
from tests.cluster.gang import hardware_answer, smi
from tests.fakes import FakeNode

CONFIG = json.dumps(dict(models()["qwen3-30b-a3b"].hf_config)).encode()
PATH = "/models/mine/config.json"
HOSTS = {"cluster.hosts.lines": "10.0.0.1\n10.0.0.2", "cluster.nodes": 2, "model.path": "/models/mine"}


class Nodes:
    """Two nodes by address, their host keys, and the confirmed keys."""

    def __init__(self):
        self.by_address = {name: FakeNode(name) for name in ("10.0.0.1", "10.0.0.2")}
        for number, node in enumerate(self.by_address.values(), 1):
            node.on("hardware", reply=hardware_answer(smi=None, memory_mib=number * 2**19))
        self.unknown = set()
        self.accepted = []

    def connect(self, host, known_hosts):
        if host.address in self.unknown - {key.host for key in self.accepted}:
            raise UnknownHostKey(host.address, self.key(host.address))
        return self.by_address[host.address]

    def key(self, address):
        return HostKey(host=address, port=22, key_type="ssh-ed25519", fingerprint=f"SHA256:{address}", line="")


@pytest.fixture
def nodes():
    return Nodes()


@pytest.fixture
def services(tmp_path, nodes):
    store = Store(tmp_path / "megaboard.db")
    known_hosts = SimpleNamespace(accept=nodes.accepted.append)
    controller = Controller(tmp_path, store, known_hosts, connect=nodes.connect)
    services = SimpleNamespace(home=tmp_path, draft=Draft(store, tmp_path), controller=controller)
    change(services, HOSTS)
    yield services
    controller.close()
    store.close()


def shape_of(services):
    return read(services.draft.job_mapping(), services.home).shape


def test_a_configuration_on_a_node_becomes_the_drafts_model(services, nodes):
    for node in nodes.by_address.values():
        node.files[PATH] = CONFIG
    result = fetch(services, {"kind": "node"})
    assert result.problems == ()
    assert dict(result.note) == {"source": f"10.0.0.1, 10.0.0.2: {PATH}", "type": "qwen3_moe"}
    assert change(services, result.edits) == ()
    assert shape_of(services).experts == 128


def test_a_folder_in_the_home_is_found_there(services, nodes):
    change(services, {"model.path": "~/mine"})
    nodes.by_address["10.0.0.1"].files["mine/config.json"] = CONFIG
    assert fetch(services, {"kind": "node"}).edits


def test_a_node_that_does_not_answer_is_named_and_the_other_is_read(services, nodes):
    nodes.by_address["10.0.0.1"].broken = NodeError("unreachable", "10.0.0.1", port=22, detail="no route")
    nodes.by_address["10.0.0.2"].files[PATH] = CONFIG
    result = fetch(services, {"kind": "node"})
    assert result.note["source"] == f"10.0.0.2: {PATH}"
    assert [(problem.code, problem.node) for problem in result.problems] == [("unreachable", "10.0.0.1")]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "model_missing"),
        (b"{}", "missing_model_key"),
        (b'{"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": "64"}', "bad_model_key"),
        (b"\xff\xfe", "config_not_json"),
        (b"", "config_empty"),
        (CONFIG[:200], "config_truncated"),
        (b" " * (MAXIMUM_BYTES + 1), "config_too_large"),
    ],
    ids=["no file", "no keys", "no number", "binary", "empty", "truncated", "huge"],
)
def test_what_is_no_known_model_leaves_the_draft_alone_and_is_named(services, nodes, content, code):
    if content is not None:
        for node in nodes.by_address.values():
            node.files[PATH] = content
    before = services.draft.job_mapping()
    result = fetch(services, {"kind": "node"})
    (problem,) = map(as_one, by_likeness(result.problems))
    assert (problem.values.get("reason_code", problem.code), dict(result.edits)) == (code, {})
    for lang in LANGUAGES:
        message = render_problem(lang, problem)["message"]
        assert all(part in message for part in ("10.0.0.1", "10.0.0.2", PATH))
    assert services.draft.job_mapping() == before


def test_the_node_that_lacks_the_model_or_has_a_broken_one_is_named_and_the_other_is_read(services, nodes):
    first, second = nodes.by_address.values()
    second.files[PATH] = CONFIG
    for content, code in ((None, "model_missing"), (CONFIG[:99], "bad_model_config"), (b"{}", "bad_model_config")):
        if content is not None:
            first.files[PATH] = content
        result = fetch(services, {"kind": "node"})
        (problem,) = result.problems
        assert (problem.code, problem.severity) == (code, "warning")
        assert "10.0.0.1" in render_problem("en", problem)["message"]
        assert result.note["source"] == f"10.0.0.2: {PATH}"
        assert change(services, result.edits) == ()
        assert shape_of(services).experts == 128


def test_configurations_that_differ_between_nodes_are_named(services, nodes):
    first, second = nodes.by_address.values()
    first.files[PATH], second.files[PATH] = CONFIG, CONFIG.replace(b'"qwen3_moe"', b'"qwen2_moe"')
    result = fetch(services, {"kind": "node"})
    (problem,) = result.problems
    assert (problem.code, problem.severity) == ("model_config_differs", "warning")
    assert problem.values == {"source": f"10.0.0.1: {PATH}", "others": [f"10.0.0.2: {PATH}"]}
    assert result.note["type"] == "qwen3_moe"


def test_a_configuration_without_an_estimate_becomes_the_drafts_model_too(services, nodes):
    for node in nodes.by_address.values():
        node.files[PATH] = b'{"model_type": "mamba9"}'
    result = fetch(services, {"kind": "node"})
    # Only an environment with torch could build the model.
    assert ([problem.code for problem in result.problems], result.note["type"]) == (["no_environment"], "mamba9")
    assert change(services, result.edits) == ()
    assert "model_not_estimated" in [p.code for p in read(services.draft.job_mapping(), services.home).problems]


def test_code_of_a_model_runs_on_a_node_only_after_the_user_has_allowed_it(services, nodes):
    change(services, {**ENGINE, "engine": "llamafactory-ddp", "extra": "neftune_noise_alpha: 5"})
    declined = {"problem": {"code": "remote_code", "model_type": "mine"}}
    first = nodes.by_address["10.0.0.1"].on("-", reply=declined)
    for node in nodes.by_address.values():
        node.files[PATH] = b'{"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.Mine"}}'
    result = fetch(services, {"kind": "node"})
    (problem,) = result.problems
    assert (problem.code, problem.severity, problem.values["reason_code"]) == (
        "no_model_profile",
        "warning",
        "profile_remote_code",
    )
    assert "--trust-remote-code" not in first.ran[-1]
    assert change(services, result.edits) == ()
    allowed = fetch(services, {"kind": "profile", "allow": True})
    assert "--trust-remote-code" in first.ran[-1]
    assert change(services, allowed.edits) == ()
    extra = read(services.draft.job_mapping(), services.home).job.extra
    assert extra == {"neftune_noise_alpha": 5, "trust_remote_code": True}
    (choice,) = problem.choices.values()
    assert choice == {"extra": extra}


def test_what_is_missing_for_it_is_named(services):
    change(services, {"cluster.hosts.lines": "", "model.path": None})
    result = fetch(services, {"kind": "node"})
    assert [(p.code, p.field) for p in result.problems] == [
        ("needed_for_launch", "cluster.hosts"),
        ("needed_for_launch", "model.path"),
    ]


def test_an_unknown_host_key_is_asked_about_and_accepted_by_its_fingerprint_alone(services, nodes):
    nodes.unknown = {"10.0.0.1", "10.0.0.2"}
    nodes.by_address["10.0.0.1"].files[PATH] = CONFIG
    result = fetch(services, {"kind": "node"})
    assert [key.host for key in result.host_keys] == ["10.0.0.1", "10.0.0.2"]
    fetch(services, {"kind": "node", "accept": ["SHA256:something-else"]})
    assert nodes.accepted == []
    again = fetch(services, {"kind": "node", "accept": [key.fingerprint for key in result.host_keys]})
    assert [key.host for key in nodes.accepted] == ["10.0.0.1", "10.0.0.2"]
    assert again.edits


def test_the_memory_of_the_smallest_node_is_taken(services):
    result = fetch(services, {"kind": "memory"})
    assert dict(result.edits) == {"cluster.host_memory_gib": 512.0}
    assert (result.done, dict(result.note)) == ("done_cpu", {"least": 512.0, "nodes": 2})


def test_the_memory_of_every_nodes_gpus_is_kept_and_the_smallest_decides(services, nodes):
    change(services, {"cluster.nodes": 2, "cluster.gpu": "a100-80g"})
    for address, mib in (("10.0.0.1", 81920), ("10.0.0.2", 40960)):
        rows = "".join(f"{index}, GPU-{index}, NVIDIA A100-SXM4, {mib}, 0, 550\n" for index in range(8))
        nodes.by_address[address].on("hardware", reply=hardware_answer(smi=smi(rows)))
    result = fetch(services, {"kind": "memory"})
    assert result.note["gpus"] == "40.0"
    assert change(services, result.edits) == ()
    reading = read(services.draft.job_mapping(), services.home)
    assert [host.gpu_memory_gib for host in reading.job.cluster.hosts] == [80.0, 40.0]
    assert reading.gpu.memory_gib == gpus()["a100-40g"].memory_gib
    [mixed] = [problem for problem in reading.problems if problem.code == "gpu_memory_mixed"]
    assert mixed.values == {"nodes": "10.0.0.2", "least": 39.4, "others": 79.2}


def test_a_node_that_does_not_answer_is_named_beside_the_others_memory(services, nodes):
    nodes.by_address["10.0.0.1"].broken = NodeError("unreachable", "10.0.0.1", port=22, detail="no route")
    result = fetch(services, {"kind": "memory"})
    assert result.edits == {"cluster.host_memory_gib": 1024.0}
    assert [problem.code for problem in result.problems] == ["unreachable"]


def test_an_engine_s_python_that_does_not_run_is_reported_and_the_hardware_read_all_the_same(services, nodes):
    change(services, {"cluster.environments.llamafactory.python": "/opt/lf/bin/python"})
    for node in nodes.by_address.values():
        node.on("/opt/lf/bin/python", reply=Result(code=127, out="", err="no such file"))
    result = fetch(services, {"kind": "memory"})
    assert result.edits["cluster.host_memory_gib"] == 512.0
    assert [problem.code for problem in result.problems] == ["no_python", "no_python"]


def test_a_fault_of_our_own_is_answered_too(services, caplog):
    assert [problem.code for problem in fetch(services, {"kind": "nonsense"}).problems] == ["internal_error"]


ENGINE = {"cluster.environments.llamafactory.python": "/opt/lf/bin/python"}
DATA = {**ENGINE, "training.dataset": "a,b", "training.dataset_dir": "/data"}


def test_samples_are_counted_and_measured_on_a_node_and_the_draft_says_where(services, nodes):
    change(services, {**DATA, "training.images_per_sample": 2})
    answer = {"samples": 1500, "rows": {"a": 1000, "b": 500}, "tokens": 321}
    nodes.by_address["10.0.0.1"].on("count", reply=answer)
    result = fetch(services, {"kind": "samples"})
    # 451,584 pixels are 441 tokens of 32 x 32.
    assert dict(result.note) == {"node": "10.0.0.1", "samples": "1,500", "rows": "a 1,000, b 500", "tokens": "1,203"}
    change(services, result.edits)
    training = read(services.draft.job_mapping(), services.home).job.training
    assert (training.samples, training.samples_from, training.sample_tokens) == (1500, "10.0.0.1: a,b", 1203)


def test_samples_that_cannot_be_measured_are_counted_all_the_same_and_keep_what_was_typed(services, nodes):
    change(services, {**DATA, "training.sample_tokens": 700})
    answer = {"samples": 1500, "rows": {"a": 1500}, "unmeasured": "/m/tokenizer.json: No such file"}
    nodes.by_address["10.0.0.1"].on("count", reply=answer)
    result = fetch(services, {"kind": "samples"})
    (problem,) = result.problems
    assert (result.done, problem.code, problem.values["node"]) == ("done_counted", "samples_not_measured", "10.0.0.1")
    change(services, result.edits)
    training = read(services.draft.job_mapping(), services.home).job.training
    assert (training.samples, training.sample_tokens) == (1500, 700)


def test_why_samples_cannot_be_counted_stands_at_the_data_with_the_node(services, nodes):
    change(services, DATA)
    nodes.by_address["10.0.0.1"].on(
        "count", reply={"code": "dataset_unknown", "values": {"path": "/data", "names": "a"}}
    )
    (problem,) = fetch(services, {"kind": "samples"}).problems
    assert (problem.code, problem.field, problem.node) == ("dataset_unknown", "training.dataset", "10.0.0.1")


def test_counting_asks_for_the_data_first(services):
    assert [problem.field for problem in fetch(services, {"kind": "samples"}).problems] == [
        "training.dataset",
        "training.dataset_dir",
    ]

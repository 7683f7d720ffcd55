"""Secrets stay in memory; what is written anywhere holds their names alone."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from backend.cluster.node import Node, NodeError
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.job.cluster import Host
from backend.job.mapping import dump_job
from backend.job.problems import ProblemsError
from backend.runs import redact
from backend.runs.collect import collector as collect
from backend.runs.connections import Connections
from backend.runs.launch import launch
from backend.runs.launch.starter import Starter
from backend.runs.rank_secrets import FILE, SECRETS, ApiKeys, Secrets
from backend.runs.redact import MARK, hide, masked, settled
from backend.runs.states import EventKind
from backend.runs.store import run_store
from backend.runs.store.store import Store
from tests.fakes import FakeNode
from tests.runs.conftest import Gang
from tests.runs.test_collector import _log
from tests.runs.test_launch import attempt, job

CANARY = "canary-5up3r.s3cret+value/="

__all__ = ["attempt", "job"]


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test in a process that was told nothing yet."""
    monkeypatch.setattr(redact, "_known_secrets", redact._KnownSecrets())
    yield
    for name in SECRETS.names():
        SECRETS.forget(name)


def refused(name: str, value: str) -> str:
    with pytest.raises(ProblemsError) as raised:
        Secrets().put(name, value)
    assert value not in str(raised.value) or not value
    return raised.value.problems[0].code


def test_a_secret_is_kept_under_its_name_until_it_is_forgotten() -> None:
    kept = Secrets()
    kept.put("HF_TOKEN", CANARY)
    kept.put("MY_OWN", "another-secret")
    assert kept.names() == ("HF_TOKEN", "MY_OWN")
    assert json.loads(kept.taken().file()) == {"HF_TOKEN": CANARY, "MY_OWN": "another-secret"}
    kept.forget("MY_OWN")
    assert json.loads(kept.taken().file()) == {"HF_TOKEN": CANARY}


def test_nothing_prints_a_secret() -> None:
    kept = Secrets()
    kept.put("HF_TOKEN", CANARY)
    assert CANARY not in f"{kept} {kept!r} {kept.taken()} {kept.taken()!r}"


def test_what_a_rank_could_not_get_or_nobody_could_hide_is_refused() -> None:
    assert refused("HF TOKEN", CANARY) == "environment_bad"
    assert refused("MASTER_ADDR", CANARY) == "environment_owned"
    assert {
        refused("HF_TOKEN", value) for value in ("", "short", "with blank in it", 'quo"ted-value', "a\nlong-line")
    } == {"secret_bad"}


def test_a_value_that_was_told_is_in_no_text_any_more() -> None:
    hide(CANARY)
    hide(CANARY[:12])
    assert redact.redact(f"failed: {CANARY} and {CANARY[:12]}") == f"failed: {MARK} and {MARK}"
    assert redact.redact_value({"note": [CANARY]}) == {"note": [MARK]}


def test_a_log_keeps_its_length_and_loses_the_secret() -> None:
    hide(CANARY)
    line = f"token is {CANARY}, the other hf_{'a' * 20}\n".encode()
    assert len(masked(line)) == len(line)
    assert CANARY.encode() not in masked(line)
    assert b"hf_a" not in masked(line)
    assert masked(b"loss 1.5 at step 3\n") == b"loss 1.5 at step 3\n"


def test_the_beginning_of_a_secret_waits_for_its_rest() -> None:
    hide(CANARY)
    data = f"it is {CANARY}".encode()
    assert settled(b"nothing of it") == 13
    assert [settled(data[:cut]) for cut in range(7, len(data))] == [6] * (len(data) - 7)
    assert settled(data) == len(data)


def test_a_log_that_says_a_secret_is_stored_without_it_however_it_arrives(gang: Gang, store: Store) -> None:
    hide(CANARY)
    text = f"before {CANARY} after\n".encode()
    path, collector = "/r/node0/out.log", gang.collector()
    for end in range(3, len(text) + 3, 3):
        gang.nodes[0].files[path] = text[:end]
        collector.poll(gang.nodes[0])
    assert _log(gang) == text.replace(CANARY.encode(), b"*" * len(CANARY))
    gang.nodes[0].files[path] += CANARY.encode()
    collector.poll(gang.nodes[0])
    gang.nodes[0].files[path] += b" again, and the beginning " + CANARY[:9].encode()
    gang.exit(0)
    collector.poll(gang.nodes[0])
    assert _log(gang).endswith(b"*" * len(CANARY) + b" again, and the beginning " + CANARY[:9].encode())
    files = [file.read_bytes() for file in store.path.parent.glob("megaboard.db*")]
    assert not any(CANARY.encode() in one or CANARY[:20].encode() in one for one in files)


def test_a_server_that_does_not_know_the_secrets_takes_of_a_log_what_the_node_has_masked(gang: Gang) -> None:
    _start_with_secrets(gang)
    collector = gang.collector()
    said = b"my token is unknown-here-0123, and on\n"
    masked_on_node = said.replace(b"unknown-here-0123", 17 * b"*")
    gang.nodes[0].files["/r/node0/out.log"] = said
    collector.poll(gang.nodes[0])
    gang.write(0, "heartbeat.jsonl", {"time": 1.0, "members": [], "gpus": [], "masked": {"out.log": 12}})
    collector.poll(gang.nodes[0])
    assert _log(gang) == b"my token is "
    gang.nodes[0].files["/r/node0/out.log"] = masked_on_node
    gang.write(0, "heartbeat.jsonl", {"time": 2.0, "members": [], "gpus": [], "masked": {"out.log": len(said)}})
    assert collector.poll(gang.nodes[0]).more is False
    assert _log(gang) == masked_on_node
    gang.nodes[0].files["/r/node0/out.log"] += b"the end\n"
    gang.exit(0)
    assert collector.poll(gang.nodes[0]).ended
    assert _log(gang) == masked_on_node + b"the end\n"


@pytest.mark.parametrize("gone", [True, False])
def test_what_a_dead_supervisor_has_not_masked_is_withheld_and_reported(gang: Gang, gone: bool) -> None:
    _start_with_secrets(gang)
    gang.nodes[0].files["/r/node0/out.log"] = b"masked, and unknown-here-0123"
    gang.write(0, "heartbeat.jsonl", {"time": 1.0, "members": [], "gpus": [], "masked": {"out.log": 8}})
    gang.exit(0, **({"gone": "supervisor"} if gone else {"left": [[7, "python", "D"]]}))
    assert gang.collector().poll(gang.nodes[0]).ended
    assert _log(gang) == b"masked, "
    assert [event.detail["files"] for event in gang.events() if event.kind is EventKind.LOG_WITHHELD] == [["out.log"]]


def test_a_long_masked_backlog_is_read_without_a_wait(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "READ_LIMIT", 100)
    _start_with_secrets(gang)
    gang.nodes[0].files["/r/node0/out.log"] = b"x" * 1000
    gang.write(0, "heartbeat.jsonl", {"time": 1.0, "masked": {"out.log": 150}})
    collector = gang.collector()
    assert collector.poll(gang.nodes[0]).more is True
    assert collector.poll(gang.nodes[0]).more is False
    assert _log(gang) == b"x" * 150


def test_a_supervisor_of_an_older_version_masks_nothing_and_its_logs_come_in_all_the_same(gang: Gang) -> None:
    _start_with_secrets(gang)
    gang.nodes[0].files["/r/node0/out.log"] = b"a line\n"
    gang.write(0, "heartbeat.jsonl", {"time": 1.0, "members": [], "gpus": []})
    gang.collector().poll(gang.nodes[0])
    assert _log(gang) == b"a line\n"


def _start_with_secrets(gang: Gang) -> None:
    rendered = json.dumps({"secrets": ["HF_TOKEN"]})
    gang.store.write(lambda c: c.execute("UPDATE attempts SET rendered = ?", (rendered,)))


def test_an_event_that_quotes_a_node_does_not_quote_a_secret(gang: Gang, store: Store) -> None:
    hide(CANARY)
    gang.add_event(EventKind.NODE_STOP_FAILED, 0, detail=f"the node said: {CANARY}", code=1)
    assert gang.events()[-1].detail == {"detail": f"the node said: {MARK}", "code": 1}


def test_a_launch_brings_the_secrets_in_a_file_of_their_own(attempt: launch.Attempt) -> None:
    SECRETS.put("HF_TOKEN", CANARY)
    taken = replace(attempt, secrets=SECRETS.taken())
    nodes = {rank: FakeNode(f"10.0.0.{rank}").on("start", reply={"ok": True}) for rank in range(2)}
    launch.start_all(taken, nodes, lambda *told: None)
    for rank, node in nodes.items():
        path = f"{taken.records[rank].folder}/{FILE}"
        assert json.loads(node.files[path]) == {"HF_TOKEN": CANARY}
        assert launch.make_spec(taken, rank)["secrets"] == path
        assert [name for name, data in node.files.items() if CANARY.encode() in data] == [path]
        assert CANARY not in str(node.ran)


def test_a_run_that_began_with_a_secret_does_not_go_on_without_it(attempt: launch.Attempt, store: Store) -> None:
    def never(host: Host) -> Node:
        raise NodeError("unreachable", host.name)

    job = dump_job(attempt.job)
    store.write(lambda c: run_store.create_run(c, attempt.run, name="n", engine="e", job=job, addresses=[], time=1.0))
    store.write(lambda c: run_store.append(c, attempt.run, EventKind.PREFLIGHT, time=1.0))
    SECRETS.put("HF_TOKEN", CANARY)
    launch.record_attempt(store, replace(attempt, secrets=SECRETS.taken()), 2.0)
    starter = Starter(
        store, Connections(never), AcceptedConfigurations(), keys=ApiKeys(), grace_s=1.0, clock=lambda: 3.0
    )
    SECRETS.forget("HF_TOKEN")  # This is like a restart of the server.
    with pytest.raises(ProblemsError, match="secrets_gone") as caught:
        starter.start(attempt.run)
    assert caught.value.problems[0].values == {"run": attempt.run, "names": "HF_TOKEN"}
    SECRETS.put("HF_TOKEN", CANARY)
    with pytest.raises(ProblemsError, match="unreachable"):
        starter.start(attempt.run)
    files = [file.read_bytes() for file in store.path.parent.glob("megaboard.db*")]
    assert not any(CANARY.encode() in one for one in files)


def test_without_secrets_there_is_no_file(attempt: launch.Attempt) -> None:
    nodes = {rank: FakeNode().on("start", reply={"ok": True}) for rank in range(2)}
    launch.start_all(attempt, nodes, lambda *told: None)
    assert not [name for name in nodes[0].files if name.endswith(FILE)]
    assert launch.make_spec(attempt, 0)["secrets"] is None

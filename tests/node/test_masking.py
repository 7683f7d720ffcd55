"""Secrets that a run prints do not stay in its logs: the supervisor replaces them by asterisks."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.node.supervisor import masking
from backend.node.supervisor.masking import LogMask
from tests.node.test_supervisor import Run, run  # noqa: F401 - a fixture
from tests.waiting import wait_for, whole_lines

TOKEN = "hf-not-a-known-shape-0123456789"
VALUES = ["secret-12345678", "aabaabaa", "secret-1"]
"""The longest first; one begins with another, and the end of one may begin another."""
PRINTS_ITS_TOKEN = """
import os, sys, time
token = os.environ["TOKEN"]
print("begin", token, "middle", flush=True)
sys.stdout.write(token[:9]); sys.stdout.flush()
while not os.path.exists("go"): time.sleep(0.02)
print(token[9:], "end", flush=True)
open("rank0.log", "w").write("rank says " + token)
"""


def test_what_a_run_prints_of_its_secrets_is_masked_on_the_node_and_heartbeats_say_how_far(run: Run) -> None:  # noqa: F811
    secrets = run.folder / "secrets.json"
    secrets.write_text(json.dumps({"TOKEN": TOKEN}))
    (run.folder / "prints.py").write_text(PRINTS_ITS_TOKEN)
    run.write_spec([sys.executable, "prints.py"], secrets=str(secrets))
    assert run.call("start")["ok"]
    # The half at the end may become a secret, so it is not yet cleared for whoever collects the log.
    begin = f"begin {'*' * len(TOKEN)} middle\n".encode()
    wait_for(lambda: newest_heartbeat(run).get("masked", {}).get("out.log") == len(begin))
    assert (run.folder / "out.log").read_bytes() == begin + TOKEN[:9].encode()
    (run.folder / "go").touch()
    assert run.wait_exit()["code"] == 0
    stars = "*" * len(TOKEN)
    assert (run.folder / "out.log").read_text() == f"begin {stars} middle\n{stars} end\n"
    assert (run.folder / "rank0.log").read_text() == f"rank says {stars}"
    assert all(TOKEN.encode() not in path.read_bytes() for path in run.folder.iterdir() if path.is_file())


def test_a_run_without_secrets_has_no_word_of_masking_in_its_heartbeats(run: Run) -> None:  # noqa: F811
    run.start_tree()
    wait_for(lambda: newest_heartbeat(run))
    assert "masked" not in newest_heartbeat(run)


def newest_heartbeat(run: Run) -> dict[str, object]:  # noqa: F811
    lines = whole_lines(run.folder / "heartbeat.jsonl")
    return json.loads(lines[-1]) if lines else {}


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_what_is_no_log_is_left_alone_and_holds_up_nothing(tmp_path: Path, kind: str) -> None:
    mask = _mask(tmp_path, ["secret-one"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("secret-one")
    if kind == "fifo":
        os.mkfifo(tmp_path / "rank1.log")
    else:
        (tmp_path / "rank1.log").symlink_to(elsewhere)
    (tmp_path / "out.log").write_text("a secret-one\n")
    mask.mask()
    assert (tmp_path / "out.log").read_text() == "a **********\n"
    assert elsewhere.read_text() == "secret-one"


@given(
    pieces=st.lists(
        st.sampled_from(["aabaab", "aab", "aabaabaa", "x", "\n", "aa", "b", "secret-1", "secr", "et-1", "-12345678"]),
        max_size=30,
    ),
    chunk=st.integers(min_value=20, max_value=40),
)
def test_however_a_log_grows_nothing_cleared_holds_a_secret(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "CHUNK_BYTES", chunk)
        mask = _mask(folder, VALUES)
        log, written = folder / "out.log", ""
        for piece in pieces:
            with log.open("a") as file:
                file.write(piece)
            written += piece
            mask.mask()
            cleared = log.read_text()[: mask.clean["out.log"]]
            assert not any(value in cleared for value in VALUES)
        mask.mask(ended=True)
    if pieces:
        assert mask.clean["out.log"] == len(written)
        assert log.read_text() == re.sub("|".join(VALUES), lambda found: "*" * len(found[0]), written)


def test_a_fault_of_one_log_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[object] = []
    monkeypatch.setattr(masking, "say", lambda *words: printed.append(words))
    mask = _mask(tmp_path, ["secret-one"])
    (tmp_path / "rank1.log").mkdir()
    mask.mask()
    mask.mask()
    assert len(printed) == 1


def test_a_log_that_grows_faster_than_it_is_masked_does_not_keep_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "CHUNK_BYTES", 64)
    monkeypatch.setattr(masking, "CHUNKS_AT_ONCE", 2)
    mask = _mask(tmp_path, ["secret-one"])
    (tmp_path / "out.log").write_bytes(b"x" * 1000)
    mask.mask()
    assert mask.clean["out.log"] == 128
    mask.mask(ended=True)
    assert mask.clean["out.log"] == 1000


def _mask(folder: Path, values: list[str]) -> LogMask:
    (folder / "secrets.json").write_text(json.dumps({str(k): value for k, value in enumerate(values)}))
    return LogMask(str(folder), {"secrets": str(folder / "secrets.json")})

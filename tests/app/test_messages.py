"""Notifications of how runs end, through real Apprise addresses and a real server that receives them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cli.notify import notifying
from app.main import main
from app.notifications.addresses import Address, read_addresses
from app.notifications.sender import AGAIN_S, MAX_AGE_S, RETRIES_S, Notifier
from app.private_file import PrivateFileError
from app.services import Services
from app.text import t
from backend.runs.database import Database
from backend.runs.states import EventKind
from backend.runs.store import metrics, run_store
from backend.runs.store.store import Store, StoreError
from tests.inbox import TOKEN, Inbox
from tools.stored_runs import StoredRun, heartbeat, problem

RUN = "20260101-000000-qwen3-vl-8b-sft-aaaa"
NOW = 1_800_000_000.0


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.close()


@pytest.fixture
def run(store: Store) -> StoredRun:
    """Return a run that trains."""
    run = StoredRun(store, RUN, now=NOW, addresses=["10.0.0.1", "10.0.0.2"])
    run.start()
    run.steps(1, 30)
    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: str, mode: int = 0o600) -> Path:
        path = tmp_path / "addresses"
        path.write_text("\n".join(lines))
        path.chmod(mode)
        return path

    return write


@pytest.fixture
def places(inbox: Inbox, write: Callable[..., Path]) -> list[Address]:
    return read_addresses(write("# on duty", "", inbox.address))


def notifier(
    store: Store, places: list[Address], lang: str = "en", now: float = NOW + 40, waits: bool = True
) -> Notifier:
    return Notifier(Database(store), places, lang, clock=lambda: now, wait=lambda _: waits)


def fail(run: StoredRun) -> None:
    lost = problem("node_lost", "10.0.0.2", seconds=30)
    run.add_event(EventKind.LOSING, 1, problem=lost)
    run.add_event(EventKind.LOST, 1, problem=lost)


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("en", ["Lost: qwen3-vl-8b-sft", "10.0.0.2", "Step 30 of 400, after 27 s", f"Run {RUN}"]),
        ("zh", ["失联：qwen3-vl-8b-sft", "10.0.0.2", "第 30 步，共 400 步，已用 27 秒", f"运行 {RUN}"]),
    ],
)
def test_a_message_gives_the_end_the_cause_the_node_and_the_progress_of_a_run(store, run, places, inbox, lang, words):
    sender = notifier(store, places, lang)
    sender.send_new()
    fail(run)
    sender.send_new()
    [message] = inbox.taken
    for word in words:
        assert word in f"{message['title']}\n{message['message']}"
    assert message["type"] == "failure"


def test_a_run_that_finished_is_reported_and_one_that_was_stopped_is_not(store, run, places, inbox):
    sender = notifier(store, places)
    sender.send_new()
    run.add_event(EventKind.FINISHED)
    other = StoredRun(store, RUN.replace("aaaa", "bbbb"), now=NOW, addresses=["10.0.0.3"])
    other.start()
    other.add_event(EventKind.STOP_REQUESTED)
    other.add_event(EventKind.STOPPED)
    sender.send_new()
    assert inbox.titles == ["Finished: qwen3-vl-8b-sft"]
    assert inbox.taken[0]["type"] == "success"


def test_the_end_of_a_chat_is_not_reported(store, run, places, inbox):
    sender = notifier(store, places)
    sender.send_new()
    store.write(lambda connection: connection.execute("UPDATE runs SET engine = 'chat' WHERE id = ?", (RUN,)))
    run.add_event(EventKind.FINISHED)
    sender.send_new()
    assert inbox.titles == []


def test_alerts_are_reported_with_their_figures_and_short_memory_is_not(store, run, places, inbox):
    sender = notifier(store, places)
    sender.send_new()
    run.add_event(EventKind.LOSS_ROSE, step=30, loss=6.25, usual=1.501)
    sender.send_new()
    run.add_event(EventKind.GRAD_NORM_ROSE, step=31, grad_norm=14.0, usual=0.8123)
    lost = {"code": "gradients_not_finite", "values": {"precision": "bf16"}}
    run.add_event(EventKind.GRAD_NORM_NOT_FINITE, step=35, grad_norm="inf", count=1, problem=lost)
    run.add_event(EventKind.DISK_LOW, 1, step=40, room=1, inode=5, free_gib=91.25, checkpoint_gib=60.5)
    run.add_event(EventKind.ALLOC_RETRIES, 1, step=41, of_rank=9, retries=3)
    software = {"code": "steps_slow_software"}
    run.add_event(
        EventKind.OUTSIDE_INTERVAL, figure="time", side="high", measured=2, low=0.8, high=1.21, problem=software
    )
    lower = {"code": "memory_lower"}
    run.add_event(EventKind.OUTSIDE_INTERVAL, figure="memory", side="low", measured=20, low=40, high=60, problem=lower)
    sender.send_new()
    assert inbox.titles == [
        "Loss has risen to 6.25 by step 30, from 1.501: qwen3-vl-8b-sft",
        "Gradient norm has risen to 14 by step 31, from 0.8123: qwen3-vl-8b-sft",
        "Gradient norm is inf at step 35: qwen3-vl-8b-sft",
        "10.0.0.2 has 91.25 GiB left for checkpoints of 60.5 GiB: qwen3-vl-8b-sft",
        "Steps take 2 s instead of 0.8 to 1.21 s: qwen3-vl-8b-sft",
    ], "a run that needs less than planned causes no message"
    assert t("en", "problem.gradients_not_finite", precision="bf16") in inbox.taken[2]["message"]
    assert t("en", "problem.steps_slow_software") in inbox.taken[-1]["message"]


def test_the_next_server_sends_events_from_while_no_server_ran_and_sends_nothing_twice(store, run, places, inbox):
    run.add_event(EventKind.LOSS_NOT_FINITE, step=12)
    first = notifier(store, places)
    first.send_new()
    assert inbox.titles == [], "events before the first start cause no message"
    first.close()
    fail(run)
    second = notifier(store, places)
    second.send_new()
    second.send_new()
    second.close()
    notifier(store, places).send_new()
    assert inbox.titles == ["Lost: qwen3-vl-8b-sft"]


def test_events_older_than_a_day_cause_no_message(store, run, places, inbox):
    sender = notifier(store, places)
    sender.send_new()
    sender.close()
    fail(run)
    notifier(store, places, now=run.now + MAX_AGE_S + 1).send_new()
    assert inbox.titles == []


def test_a_refused_message_is_tried_again(store, run, places, inbox):
    waited = []
    sender = Notifier(
        Database(store), places, "en", clock=lambda: NOW + 40, wait=lambda seconds: waited.append(seconds) or True
    )
    sender.send_new()
    inbox.refuses = 2
    fail(run)
    sender.send_new()
    assert inbox.titles == ["Lost: qwen3-vl-8b-sft"]
    assert waited == list(RETRIES_S[:2])


def test_a_failing_address_is_recorded_in_the_run_s_history_and_delays_no_other(store, run, inbox, write, caplog):
    nobody = "json://127.0.0.1:9/" + TOKEN
    waited = []
    places = read_addresses(write(nobody, inbox.address))
    sender = Notifier(
        Database(store), places, "en", clock=lambda: NOW + 40, wait=lambda seconds: waited.append(seconds) or True
    )
    sender.send_new()
    run.add_event(EventKind.LOSS_NOT_FINITE, step=30)
    fail(run)
    sender.send_new()
    assert inbox.titles == ["Loss is not finite at step 30: qwen3-vl-8b-sft", "Lost: qwen3-vl-8b-sft"]
    assert waited == list(RETRIES_S), "a failing address gets one try a message"
    with store.read() as connection:
        noted = [event for event in run_store.events(connection, RUN) if event.kind is EventKind.MESSAGE_FAILED]
    assert [event.detail["to"] for event in noted] == ["JSON 1", "JSON 1"]
    assert "127.0.0.1" in noted[0].detail["reason"]
    assert TOKEN not in caplog.text + str([event.detail for event in noted])


def test_a_server_that_ends_during_a_retry_leaves_the_message_to_the_next_server(store, run, places, inbox):
    sender = notifier(store, places, waits=False)
    sender.send_new()
    inbox.refuses = 1
    fail(run)
    assert not sender.send_new()
    sender.close()
    notifier(store, places).send_new()
    assert inbox.titles == ["Lost: qwen3-vl-8b-sft"]


def test_a_hang_is_reported_once_with_the_node_that_the_others_wait_for_and_again_if_it_returns_later(
    store, run, places, inbox
):
    now = [run.now]
    sender = Notifier(Database(store), places, "en", clock=lambda: now[0], wait=lambda _: True)
    sender.send_new()
    run.beat([0])
    for number, later in enumerate((300, 100, AGAIN_S + 100)):
        now[0] += later
        sender.send_new()
        run.now = now[0]
        run.steps(31 + 2 * number, 32 + 2 * number)
        sender.send_new()
    assert inbox.titles == ["No progress: qwen3-vl-8b-sft"] * 2
    assert "10.0.0.2" in inbox.taken[0]["message"]


def test_a_slow_run_is_reported_once_with_its_slow_gpu(store, run, places, inbox):
    run.steps(31, 130, step_s=4)
    run.steps(131, 159, step_s=8)
    run.steps(160, 160, step_s=8)
    run.beat([0])
    cards = [{"index": 0, "utilization": 99, "clock_mhz": 1980, "clock_limits": 0}]
    cards += [{"index": 1, "utilization": 99, "clock_mhz": 1100, "clock_limits": 64}]
    row = {**heartbeat(1, 0, run.now), "gpus": cards}
    store.write(lambda c: metrics.add_heartbeats(c, RUN, 1, 1, [row], run.now))
    sender = notifier(store, places, "zh", now=run.now)
    sender.send_new()
    sender.send_new()
    [message] = inbox.taken
    assert message["title"] == "变慢：qwen3-vl-8b-sft"
    for words in ("每步 8", "节点 1 · 10.0.0.2，GPU 1：因过热被降频。1,100 MHz"):
        assert words in message["message"]


def test_only_one_of_two_servers_of_a_home_sends_until_it_closes(store, run, places, inbox):
    first, second = notifier(store, places), notifier(store, places)
    first.send_new()
    second.send_new()
    fail(run)
    second.send_new()
    assert inbox.titles == []
    first.close()
    second.send_new()
    assert inbox.titles == ["Lost: qwen3-vl-8b-sft"]


def test_a_full_disk_causes_no_repeated_messages(store, run, places, inbox, monkeypatch):
    sender = notifier(store, places)
    sender.send_new()
    fail(run)

    def full(change: object) -> None:
        raise StoreError("store_full", store.path, "database or disk is full")

    monkeypatch.setattr(store, "write", full)
    sender.send_new()
    sender.send_new()
    assert inbox.titles == ["Lost: qwen3-vl-8b-sft"]


def test_an_unreadable_run_does_not_prevent_messages_about_others(store, run, places, inbox):
    sender = notifier(store, places)
    sender.send_new()
    broken = StoredRun(store, RUN.replace("aaaa", "bbbb"), now=NOW, addresses=["10.0.0.3"])
    broken.start()
    broken.add_event(EventKind.LOSS_NOT_FINITE, step=1)
    store.write(lambda c: c.execute("UPDATE runs SET job = 'no: job' WHERE id = ?", (broken.id,)))
    damaged = (broken.id, EventKind.LOSS_NOT_FINITE.value, NOW, "{")
    store.write(
        lambda c: c.execute("INSERT INTO events (run, attempt, kind, time, detail) VALUES (?, 1, ?, ?, ?)", damaged)
    )
    fail(run)
    sender.send_new()
    assert inbox.titles == ["Lost: qwen3-vl-8b-sft"]


def test_events_before_the_first_poll_are_reported(store, run, places, inbox, monkeypatch):
    sender = notifier(store, places)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    sender.start()
    fail(run)
    sender.send_new()
    assert inbox.titles == ["Lost: qwen3-vl-8b-sft"]


@pytest.mark.parametrize(
    ("lines", "mode", "code", "line"),
    [
        (["# none"], 0o600, "message_addresses_none", None),
        (["json://127.0.0.1:9", f"nonsense://{TOKEN}"], 0o600, "message_address_unknown", 2),
        (["json://127.0.0.1:9"], 0o640, "private_file_open", None),
    ],
)
def test_an_invalid_file_of_addresses_is_refused_by_line_number_without_its_text(
    write, capsys, caplog, lines, mode, code, line
):
    path = write(*lines, mode=mode)
    with pytest.raises(PrivateFileError) as error:
        read_addresses(path)
    assert (error.value.code, error.value.values.get("line")) == (code, line)
    assert main(["notify", "--notify-file", str(path)]) == 2
    out, err = capsys.readouterr()
    assert str(path) in err
    assert TOKEN not in out + err + caplog.text


def test_the_command_tries_every_address_and_names_the_ones_that_failed(tmp_path, monkeypatch, inbox, write, capsys):
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))
    path = write(inbox.address)
    monkeypatch.setenv("MEGABOARD_NOTIFY_FILE", str(path))
    assert main(["notify"]) == 0
    assert inbox.titles == [t("en", "message.trial")]
    write(inbox.address, "json://127.0.0.1:9/" + TOKEN)
    assert main(["notify"]) == 1
    out, err = capsys.readouterr()
    assert "JSON 1" in out
    assert "JSON 2" in err
    audit = (tmp_path / "home" / "audit.jsonl").read_text()
    assert "notify" in audit
    assert TOKEN not in out + err + audit


def test_a_waiting_command_sends_all_notifications_before_it_ends(tmp_path, store, run, write, inbox, capsys):
    places = read_addresses(write(inbox.address))
    services = Services.open(tmp_path)
    with notifying(services, places, "en"):
        assert "JSON" in capsys.readouterr().out
        run.now = services.clock()
        run.add_event(EventKind.FINISHED)
    services.close()
    assert inbox.titles == ["Finished: qwen3-vl-8b-sft"]


@pytest.mark.parametrize(
    "command",
    [["launch", "job.yaml"], ["resume", RUN], ["watch", "host:/runs", "--detach"]],
    ids=lambda command: command[0],
)
def test_a_command_that_does_not_wait_accepts_no_addresses(write, inbox, capsys, monkeypatch, tmp_path, command):
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("app.cli.launch.read_launchable_job", lambda file, lang: None)
    assert main(["--lang", "en", *command, "--notify-file", str(write(inbox.address))]) == 2
    assert "serve --notify-file" in capsys.readouterr().err


def test_a_waiting_command_starts_nothing_with_an_invalid_address_file(write, capsys, monkeypatch):
    monkeypatch.setattr("app.cli.launch.read_launchable_job", lambda file, lang: None)
    path = write("json://127.0.0.1:9", mode=0o644)
    assert main(["--lang", "en", "launch", "job.yaml", "--wait", "--notify-file", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_the_command_without_addresses_says_how_to_name_them(monkeypatch, capsys):
    monkeypatch.delenv("MEGABOARD_NOTIFY_FILE", raising=False)
    assert main(["notify"]) == 2
    assert "MEGABOARD_NOTIFY_FILE" in capsys.readouterr().err

"""Whatever a node writes, the run is shown, good parts are kept, and the run ends when it should.

Every field of a good record of each kind takes every hostile value; a part of the cases is random JSON. All go through
the real collector, store, monitor, page and command line; the node alone is a fake.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.cli.status import _print_run
from app.monitor.poll_request import PollRequest
from app.monitor.poll_response import PollResponder
from app.monitor.watch import RunCache
from app.text import LANGUAGES
from app.text.alerts import lines as alert_lines
from backend.cluster.node_json import parse_node_json
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.typed_json import FAULTS, read
from backend.runs.collect.collector import Collector
from backend.runs.collect.external_run import NodeReader
from backend.runs.collect.node_files import RecordFile
from backend.runs.collect.node_records import Exit, Heartbeat, Status, Step, Stopped
from backend.runs.controller import Controller
from backend.runs.database import Database
from backend.runs.diagnosis.diagnose import diagnose
from backend.runs.records import NodeRecord
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.store import Store
from backend.runs.view.snapshot import snapshot, summaries
from tests.fakes import Result
from tests.hostile_json import mutations
from tests.runs.conftest import RUN, Gang, make_gang

pytestmark = pytest.mark.slow

DEEP = 100_000
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 1e300, -1e300, 10**30, math.nan, math.inf, -math.inf, "", "text", "x" * 100_000,
    "\ud800\x00\x1b[31m", [], [None], ["a", ["b"]], [[1, 2, 3, 4, 5, 6]], {}, {"left": "x"}, list(range(10_000)),
    json.loads("[" * 500 + "]" * 500),
)  # fmt: skip

GPU = {"index": 0.0, "utilization": 97.0, "memory_used_mib": 70000.0, "memory_total_mib": 81559.0, "power_w": 650.5,
       "temperature_c": 61.0, "clock_mhz": 1755.0, "clock_limits": 4.0}  # fmt: skip
BEAT = {"protocol": 1, "time": 1000.0, "members": [[1, 2]], "gpus": [GPU, {**GPU, "index": 1.0}],
        "stuck": [[7, "python", "D", 0]], "wrote": 1000.0, "worked": [[0, 1000.0], [None, 999.0]], "load1": 1.5,
        "memory_used_mib": 1000, "memory_total_mib": 2000, "disk_free_mib": 3000}  # fmt: skip
STEP = {"protocol": 1, "step": 1, "total_steps": 10, "time": 1000.0, "step_s": 0.5, "tokens": 64, "loss": 2.0,
        "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": 0.1, "allocated_gib": 1.0, "reserved_gib": 2.0,
        "token_per_sec_per_gpu": 100.0, "alloc_retries": 1, "checkpoint_bytes": 100, "free_bytes": 10,
        "results_inode": 5, "metrics": {"eval_loss": 1.0}}  # fmt: skip
XID = {"pci": "0000:83:00", "gpu": 0.0, "xid": 79, "count": 1, "time": 1000.0, "text": "GPU has fallen off the bus."}
EXIT = {"protocol": 1, "code": 1, "signal": None, "stopped": False, "reason": "failed", "left": [], "disk_full": False,
        "time": 1000.0, "stuck": [[7, "python", "D", 0]], "gpus": [[0.0, 1.0, 2.0]], "gone": "",
        "kernel_log": {"xids": [XID], "unread": ""}}  # fmt: skip
STOP = {"protocol": 1, "left": [], "exit": EXIT}
STATUS = {"protocol": 1, "supervisor": True, "rebooted": False, "members": [[1, 2, "python"]], "exit": None}
TRAINER = {"current_steps": 1, "total_steps": 10, "loss": 1.0, "lr": 1e-4, "epoch": 0.1, "elapsed_time": "0:00:01",
           "remaining_time": "0:00:09", "total_tokens": 64}  # fmt: skip


def _raw(kind: Any) -> list[bytes]:
    """Texts that are no record of any kind."""
    deep = b"[" * DEEP
    return [b"", b"null", b"[]", b"7", b'"x"', b"{", b"\xff\xfe", deep, b'{"a":' * 5000, b"1" * 5000, b"{}", kind]


def _look(gang: Gang, capsys: pytest.CaptureFixture[str] | None = None) -> None:
    """Everything that shows a run, in both languages; none raises."""
    known_hosts = KnownHosts(gang.home / "known_hosts", None)
    controller = Controller(gang.home, gang.store, known_hosts, clock=gang.clock)
    usage = {"measure": "utilization", "have": {}}
    for lang in LANGUAGES:
        database = Database(gang.store)
        responder = PollResponder(RunCache(controller, database, gang.clock), database, lang, gang.clock)
        for run in ("", RUN):
            answer = responder.answer(PollRequest.from_json({"run": run, "seen": {}, "usage": usage}), gang.clock.now)
            assert answer is not None
            assert "error" not in json.loads(answer, parse_constant=lambda name: pytest.fail(name))
            answer.encode()
        shown = gang.snapshot()
        alert_lines(shown, lang)
        _print_run(shown, gang.clock.now, lang)
    if capsys is not None:
        capsys.readouterr()


def _states(gang: Gang) -> list[RunState]:
    with gang.store.read() as connection:
        return [line.state for line in summaries(connection, {}, gang.clock.now)]


def _sampled(cases: list[Any], count: int, seed: int = 14) -> list[Any]:
    return random.Random(seed).sample(cases, min(count, len(cases)))


def test_good_lines_around_a_hostile_heartbeat_are_all_taken(gang: Gang, capsys: pytest.CaptureFixture[str]) -> None:
    collector, folder = gang.collector(), gang.records[0].folder
    lines = [json.dumps(one).encode() for one in _sampled(list(mutations(BEAT, HOSTILE)), 500)] + _raw(b'{"time": NaN}')
    for number, line in enumerate(lines):
        gang.clock.now += 2.0
        good = json.dumps({**BEAT, "time": gang.clock.now, "load1": number + 0.5}).encode()
        path = f"{folder}/heartbeat.jsonl"
        gang.nodes[0].files[path] = gang.nodes[0].files.get(path, b"") + line + b"\n" + good + b"\n"
        while collector.poll(gang.nodes[0]).more:
            pass
        if number % 100 == 0 or number == len(lines) - 1:
            _look(gang, capsys)
        with gang.store.read() as connection:
            (line_of_run,) = summaries(connection, {}, gang.clock.now)
            beat = metrics.newest_heartbeats(connection, RUN, 1)[0][1]
        assert line_of_run.state is RunState.RUNNING
        assert beat["load1"] == number + 0.5
    assert len(lines) > 500


def test_good_lines_around_a_hostile_step_are_all_taken(gang: Gang, capsys: pytest.CaptureFixture[str]) -> None:
    collector, path = gang.collector(), f"{gang.records[0].folder}/steps.rank0.jsonl"
    records = mutations({**STEP, "step": 0}, HOSTILE)
    lines = [json.dumps(record).encode() for record in records] + _raw(b'{"step": 1e400, "time": 1}')
    gang.nodes[0].files[path] = b""
    for number, line in enumerate(lines, 1):
        gang.clock.now += 1.0
        good = json.dumps({**STEP, "step": number, "time": gang.clock.now}).encode()
        gang.nodes[0].files[path] += line + b"\n" + good + b"\n"
        while collector.poll(gang.nodes[0]).more:
            pass
        if number % 100 == 0 or number == len(lines):
            _look(gang, capsys)
    steps = {point.step for point in gang.points()}
    assert steps >= set(range(1, len(lines) + 1))
    assert max(steps) <= 10**9
    (event,) = [one for one in gang.events() if one.kind is EventKind.BAD_RECORDS][:1]
    assert (event.rank, event.detail["file"]) == (0, "steps.rank0.jsonl")


@pytest.mark.parametrize("seed", range(4))
def test_a_hostile_exit_ends_its_node_and_the_run(home: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [json.dumps(one).encode() for one in mutations(EXIT, HOSTILE)] + _raw(b'{"code": 0, "time": "soon"}')
    for number, data in enumerate(_sampled(cases, 60, seed)):
        gang = _new_gang(home / f"{seed}.{number}")
        monitor = gang.monitor()
        gang.nodes[1].files[f"{gang.records[1].folder}/exit"] = data
        gang.exit(0)
        gang.exit(2)
        assert gang.pass_time(monitor, 60), data[:200]
        assert gang.state() in (RunState.FAILED, RunState.FINISHED, RunState.STOPPED), data[:200]
        if gang.state() is RunState.FAILED:
            assert gang.cause() is not None
        assert _claims(gang) == {}
        _look(gang, capsys)
        gang.store.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_stop_ends_the_run_whatever_a_node_answers(home: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [json.dumps(one).encode() for one in mutations(STOP, HOSTILE)] + [b"{", b"null", b"[]", b"[" * DEEP]
    for number, answer in enumerate(_sampled(answers, 40, seed)):
        gang = _new_gang(home / f"{seed}.{number}")
        gang.nodes[1].on("stop", reply=_says(answer)).on("-s", reply=_says(answer))
        gang.nodes[1].files[f"{gang.records[1].folder}/exit"] = answer
        monitor = gang.monitor()
        gang.add_event(EventKind.STOP_REQUESTED, save=False)
        assert gang.pass_time(monitor, 400), answer[:200]
        assert gang.state() in (RunState.STOPPED, RunState.LOST), answer[:200]
        assert _claims(gang) == {}
        _look(gang, capsys)
        gang.store.close()


def test_a_hostile_status_leaves_the_run_or_ends_it(home: Path) -> None:
    answers = [json.dumps(one).encode() for one in mutations(STATUS, HOSTILE)] + [b"{", b"null", b"[]", b"[" * DEEP]
    for number, answer in enumerate(_sampled(answers, 60)):
        gang = _new_gang(home / str(number))
        gang.nodes[1].on("status", reply=_says(answer))
        gang.pass_time(gang.monitor(), 30)
        assert gang.state() in (RunState.RUNNING, RunState.FAILED), answer[:200]
        gang.store.close()


def test_what_an_older_server_stored_is_read_safely(gang: Gang, capsys: pytest.CaptureFixture[str]) -> None:
    """It took heartbeats, exits and answers as they came."""

    def put(kind: str, record: str) -> None:
        if kind == "beat":
            values = (RUN, gang.clock.now, gang.clock.now, record)
            gang.store.write(lambda c: c.execute("REPLACE INTO heartbeats VALUES (?, 1, 0, ?, ?, ?)", values))
        else:
            gang.store.write(lambda c: c.execute(f"UPDATE nodes SET {kind} = ? WHERE rank = 0", (record,)))

    kinds = {"beat": BEAT, "exit": EXIT, "stop": STOP}
    for kind, record in kinds.items():
        for number, one in enumerate(_sampled(list(mutations(record, HOSTILE)), 120)):
            put(kind, json.dumps(one))
            assert _states(gang) == [RunState.RUNNING]
            with gang.store.read() as connection:
                snapshot(connection, RUN, gang.clock.now)
                metrics.recent_gpus(connection, RUN, 1, 0, since=0.0)
                diagnose(connection, RUN, 1, _failed(connection))
            if number % 40 == 0:
                _look(gang, capsys)


def _failed(connection: Any) -> tuple[NodeRecord, ...]:
    """The nodes, one of which failed by itself for certain."""
    records = attempts.nodes(connection, RUN, 1)
    last = NodeRecord(rank=2, address="a", folder="/r", python="/p", mark="m", exit={"code": 1, "time": 1.0})
    return (*records[:2], last)


def test_what_an_older_server_stored_as_events_is_read_safely(gang: Gang, capsys: pytest.CaptureFixture[str]) -> None:
    records = {EventKind.NODE_STUCK: {"stuck": BEAT["stuck"]}, EventKind.NODE_EXITED: EXIT,
               EventKind.GPU_ERROR: {"xids": [XID]}, EventKind.KERNEL_LOG_UNREAD: {"reason": "no"},
               EventKind.NODE_STOPPED: {"left": [[1, "python", "D"]]}}  # fmt: skip
    for kind, record in records.items():
        for one in _sampled(list(mutations(record, HOSTILE)), 60):
            detail = json.dumps(one)
            values = (RUN, kind.value, gang.clock.now, detail)
            sql = "INSERT INTO events (run, attempt, rank, kind, time, detail) VALUES (?, 1, 0, ?, ?, ?)"
            gang.store.write(lambda c, sql=sql, values=values: c.execute(sql, values))
        _look(gang, capsys)


def test_hostile_lines_of_somebody_elses_training_leave_its_good_ones(gang: Gang) -> None:
    source = RecordFile(file="trainer_log.jsonl", kind="trainer_log")
    collector = Collector(gang.store, RUN, 1, gang.records[0], (), gang.clock, external_sources=[source])
    path, lines = (
        f"{gang.records[0].folder}/trainer_log.jsonl",
        [json.dumps(one).encode() for one in mutations(TRAINER, HOSTILE)],
    )
    gang.nodes[0].files[path] = b""
    for number, line in enumerate(lines + _raw(b'{"current_steps": 1}'), 2):
        good = json.dumps({**TRAINER, "current_steps": number, "elapsed_time": f"{number}:00:00"}).encode()
        gang.nodes[0].files[path] += line + b"\n" + good + b"\n"
        gang.clock.now += 5.0
        while collector.poll(gang.nodes[0]).more:
            pass
        assert number in {point.step for point in gang.points()}, line[:200]
    assert _states(gang) == [RunState.RUNNING]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "nan", "9" * 400, "1" * 18, "0x10", "1_000", " "])
def test_hostile_figures_in_megatrons_own_lines_stop_nothing(gang: Gang, number: str) -> None:
    source = RecordFile(file="train.log", kind="megatron_log")
    collector = Collector(gang.store, RUN, 1, gang.records[0], (), gang.clock, external_sources=[source])
    line = f" iteration 7/ 10 | elapsed time per iteration (ms): {number} | lm loss: {number} | grad norm: {number} |\n"
    odd = line.replace("7/ 10", f"{'1' * 18}/ {'9' * 18}")
    gang.nodes[0].files[f"{gang.records[0].folder}/train.log"] = (odd + line).encode()
    collector.poll(gang.nodes[0])
    assert [point.step for point in gang.points()] == [7]
    assert _states(gang) == [RunState.RUNNING]


@pytest.mark.parametrize(
    "said",
    ["MemTotal: x kB", "MemTotal: 10 kB\nMemTotal: 20 kB", "a b c d e% f", "9/9 1 1 a/b 1", ",,,,,,,",
     "1e999,1e999,nan,-1,x,0x,0xfff,\x00", f"MemTotal: {'9' * 5000}"],
)  # fmt: skip
def test_hostile_words_of_a_watched_node_stop_nothing(gang: Gang, said: str) -> None:
    gang.nodes[0].on("sh", reply=Result(code=0, out=said, err=""))
    NodeReader(gang.store, RUN, gang.records[0], (), gang.clock).poll(gang.nodes[0])
    assert _states(gang) == [RunState.RUNNING]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def _some(record: dict[str, Any]) -> st.SearchStrategy[Any]:
    """A record some of whose fields are anything."""
    return st.fixed_dictionaries({}, optional={key: st.just(value) | JSON for key, value in record.items()}) | JSON


@settings(max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(beats=st.lists(_some(BEAT), max_size=6), steps=st.lists(_some(STEP), max_size=6), ended=_some(EXIT))
def test_a_node_that_writes_anything_at_all_is_collected_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, beats: list[Any], steps: list[Any], ended: Any
) -> None:
    gang = _new_gang(tmp_path_factory.mktemp("any"))
    for file, rows in (("heartbeat.jsonl", beats), ("steps.rank0.jsonl", steps)):
        gang.nodes[0].files[f"{gang.records[0].folder}/{file}"] = b"".join(_line(row) for row in rows)
    gang.nodes[0].files[f"{gang.records[0].folder}/exit"] = _line(ended)
    assert gang.collector().poll(gang.nodes[0]).ended
    _look(gang)
    gang.store.close()


@settings(max_examples=200, derandomize=True)
@given(value=JSON | _some(BEAT) | _some(STEP) | _some(EXIT) | _some(STOP))
def test_what_was_read_once_is_read_again_without_a_fault(value: Any) -> None:
    for shape in (Heartbeat, Step, Exit, Stopped, Status):
        found, faults = read(shape, value)
        assert len(faults) <= FAULTS
        if found is not None and shape is not Step:  # A loss may be NaN, which does not equal itself.
            assert read(shape, parse_node_json(json.dumps(found))) == (found, [])


def test_what_could_not_be_read_is_counted_and_reported_at_every_tenfold(gang: Gang) -> None:
    collector, path = gang.collector(), f"{gang.records[0].folder}/heartbeat.jsonl"
    gang.nodes[0].files[path] = b""
    for _ in range(120):
        gang.nodes[0].files[path] += b'{"time": 1000, "load1": "\\u001b[31m' + b"x" * 500 + b'"}\n'
        collector.poll(gang.nodes[0])
    told = [event for event in gang.events() if event.kind is EventKind.BAD_RECORDS]
    assert [(event.rank, event.detail["count"]) for event in told] == [(0, 1), (0, 10), (0, 100)]
    first = told[0].detail["first"]
    assert first.startswith('{"time": 1000, "load1": "')
    assert first.isascii()
    assert first.isprintable()
    assert len(first) < 200
    with gang.store.read() as connection:
        lines = alert_lines(snapshot(connection, RUN, gang.clock.now), "en")
    assert len(lines) == 1
    assert "10.0.0.1:22: 100 records in heartbeat.jsonl" in lines[0]
    assert gang.collector().poll(gang.nodes[0]).ended is False
    gang.nodes[0].files[path] += b"no json\n" * 900
    another = gang.collector()
    another.poll(gang.nodes[0])
    counts = [event.detail["count"] for event in gang.events() if event.kind is EventKind.BAD_RECORDS]
    assert counts[-1] == 1000, "a new collector goes on from what was told"


def _line(row: Any) -> bytes:
    return json.dumps(row).encode(errors="replace") + b"\n"


def _says(answer: bytes) -> Any:
    """What a node prints after the token."""

    def reply(argv: Any, stdin: bytes) -> Result:
        token = argv[list(argv).index("--token") + 1]
        return Result(code=0, out=token + answer.decode() + "\n", err="")

    return reply


def _new_gang(home: Path) -> Gang:
    home.mkdir(exist_ok=True)
    return make_gang(Store(home / "megaboard.db"), home)


def _claims(gang: Gang) -> dict[str, str]:
    with gang.store.read() as connection:
        return run_store.claims(connection)

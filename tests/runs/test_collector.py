import json
import math
import random
import sqlite3
from pathlib import Path

import pytest

from backend.cluster.node import NodeError
from backend.runs import redact
from backend.runs.collect import collector as collect
from backend.runs.collect.collector import Collector
from backend.runs.collect.node_files import files_of
from backend.runs.collect.step_tokens import RATE
from backend.runs.states import EventKind
from backend.runs.store import metrics, run_store
from backend.runs.store.metrics import FileKey
from backend.runs.store.store import Store, StoreError
from tests.runs.conftest import RUN, Gang

STEPS = "/r/node0/steps.rank0.jsonl"


def _step(number: int, **more: object) -> dict[str, object]:
    return {"protocol": 1, "step": number, "total_steps": 9, "time": 1.0 * number, "step_s": 0.5, **more}


def _log(gang: Gang, file: str = "out.log", **window: int) -> bytes:
    key = FileKey(run=RUN, attempt=1, rank=0, file=file)
    with gang.store.read() as connection:
        return metrics.log_tail(connection, key, **{"size": 1 << 20, **window})[1]


def test_every_step_is_taken_once_with_all_it_tells(gang: Gang) -> None:
    collector = gang.collector()
    gang.write(0, "steps.rank0.jsonl", _step(1, loss=2.5, grad_norm=1.0, learning_rate=1e-4, tokens=64), _step(2))
    assert collector.poll(gang.nodes[0]).more is False
    gang.write(0, "steps.rank0.jsonl", _step(3, loss=2.0))
    collector.poll(gang.nodes[0])
    collector.poll(gang.nodes[0])
    points = gang.points()
    assert [point.step for point in points] == [1, 2, 3]
    assert (points[0].loss, points[0].tokens, points[0].total_steps, points[1].loss) == (2.5, 64, 9, None)


def test_tokens_follow_from_the_rate_where_the_engine_tells_that_alone(gang: Gang) -> None:
    # The gang's job: 3 data-parallel ranks, micro-batch 1. A rate is since the end of the step before.
    rate = {"token_per_sec_per_gpu": 512.0}
    gang.write(0, "steps.rank0.jsonl", _step(1, **rate), _step(2, **rate), _step(3), _step(5, **rate))
    gang.collector().poll(gang.nodes[0])
    assert [point.tokens for point in gang.points()] == [768, 1536, None, 768]


def test_half_a_line_waits_for_its_end(gang: Gang) -> None:
    collector = gang.collector()
    gang.nodes[0].files[STEPS] = b'{"step": 1, "time": 1}\n{"step": 2, "ti'
    collector.poll(gang.nodes[0])
    assert [point.step for point in gang.points()] == [1]
    gang.nodes[0].files[STEPS] += b'me": 2}\n'
    collector.poll(gang.nodes[0])
    assert [point.step for point in gang.points()] == [1, 2]


def test_a_line_that_is_no_record_is_left_out_and_stops_nothing(gang: Gang) -> None:
    gang.nodes[0].files[STEPS] = (
        b'garbage\n[1]\n{"step": "x", "time": 1}\n{"step": 1, "time": 1, "loss": "bad", "epoch": null}\n\xff\xfe\n'
    )
    gang.collector().poll(gang.nodes[0])
    (point,) = gang.points()
    assert (point.step, point.loss, point.epoch) == (1, None, None)


@pytest.mark.parametrize("key", ["step", "time", "total_steps", "tokens", "loss", "alloc_retries", RATE])
@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1" + 30 * "0", "-9223372036854775809", "1" + 400 * "0"])
def test_a_number_that_cannot_be_kept_is_left_out_and_stops_nothing(gang: Gang, key: str, value: str) -> None:
    line = json.dumps({**_step(1, loss=1.0, alloc_retries=0), key: "VALUE"}).replace('"VALUE"', value)
    beat = f'{{"members": [], "gpus": [], "time": {value}}}\n'
    gang.nodes[0].files[STEPS] = f"{line}\n".encode() + b"[" * 100_000 + b"\n"
    gang.nodes[0].files["/r/node0/heartbeat.jsonl"] = beat.encode()
    gang.write(0, "steps.rank0.jsonl", _step(2))
    gang.exit(0)
    assert gang.collector().poll(gang.nodes[0]).ended
    assert [point.step for point in gang.points()][-1] == 2
    assert "nan" not in str([(point.total_steps, point.tokens) for point in gang.points()])


def test_nan_and_infinity_survive_and_are_reported_once(gang: Gang) -> None:
    gang.write(0, "steps.rank0.jsonl", _step(1, loss=float("nan")), _step(2, loss=float("inf")), _step(3, loss=0.0))
    gang.collector().poll(gang.nodes[0])
    losses = [point.loss for point in gang.points()]
    assert losses[0] is not None
    assert math.isnan(losses[0])
    assert losses[1:] == [math.inf, 0.0]
    assert [event.detail["step"] for event in gang.events() if event.kind is EventKind.LOSS_NOT_FINITE] == [1]


def test_a_file_that_was_cut_is_read_anew_and_doubles_no_step(gang: Gang) -> None:
    collector = gang.collector()
    gang.write(0, "steps.rank0.jsonl", *[_step(number) for number in range(1, 6)])
    collector.poll(gang.nodes[0])
    gang.nodes[0].files[STEPS] = b""
    gang.write(0, "steps.rank0.jsonl", _step(5), _step(6))
    collector.poll(gang.nodes[0])
    assert [point.step for point in gang.points()] == [1, 2, 3, 4, 5, 6]


def test_a_log_that_was_replaced_by_a_longer_one_is_noticed(gang: Gang) -> None:
    collector = gang.collector()
    gang.nodes[0].files["/r/node0/out.log"] = b"old start\n"
    collector.poll(gang.nodes[0])
    gang.nodes[0].files["/r/node0/out.log"] = b"new start and more\n"
    collector.poll(gang.nodes[0])
    assert _log(gang) == b"new start and more\n"


def test_log_bytes_come_back_whole_and_by_window(gang: Gang) -> None:
    collector = gang.collector()
    for part in (b"one\n", b"tw", b"o\nthree\n"):
        gang.nodes[0].files["/r/node0/rank0.log"] = gang.nodes[0].files.get("/r/node0/rank0.log", b"") + part
        collector.poll(gang.nodes[0])
    assert _log(gang, "rank0.log") == b"one\ntwo\nthree\n"
    assert _log(gang, "rank0.log", size=6) == b"three\n"
    assert _log(gang, "rank0.log", before=8) == b"one\ntwo\n"
    assert _log(gang, "rank0.log", before=8, size=4) == b"two\n"


def test_a_backlog_is_taken_in_pieces(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "READ_LIMIT", 200)
    gang.write(0, "steps.rank0.jsonl", *[_step(number) for number in range(1, 20)])
    collector, polls = gang.collector(), 1
    while collector.poll(gang.nodes[0]).more:
        polls += 1
    assert polls > 3
    assert [point.step for point in gang.points()] == list(range(1, 20))


def test_a_line_longer_than_a_read_does_not_stop_the_file(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "READ_LIMIT", 200)
    gang.nodes[0].files[STEPS] = b"x" * 1000 + b"\n"
    gang.write(0, "steps.rank0.jsonl", _step(1))
    collector = gang.collector()
    while collector.poll(gang.nodes[0]).more:
        pass
    assert [point.step for point in gang.points()] == [1]


def test_a_log_that_became_a_pipe_is_reported_once_and_stops_nothing(
    gang: Gang, caplog: pytest.LogCaptureFixture
) -> None:
    collector = gang.collector()
    for _ in range(3):
        gang.nodes[0].special.add("/r/node0/out.log")
        gang.write(0, "steps.rank0.jsonl", _step(1))
        collector.poll(gang.nodes[0])
    assert [point.step for point in gang.points()] == [1]
    assert [record.getMessage() for record in caplog.records if "out.log" in record.getMessage()] == [
        f"out.log of {RUN} is not read: 10.0.0.1: not_a_file {{'path': '/r/node0/out.log'}}"
    ]


def test_exit_is_believed_only_after_everything_else_was_read(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "READ_LIMIT", 300)
    gang.write(0, "steps.rank0.jsonl", *[_step(number) for number in range(1, 10)])
    gang.exit(0)
    collector = gang.collector()
    first = collector.poll(gang.nodes[0])
    assert (first.more, first.ended) == (True, False)
    assert "node_exited" not in gang.kinds()
    while not collector.poll(gang.nodes[0]).ended:
        pass
    assert len(gang.points()) == 9
    assert gang.kinds().count("node_exited") == 1


def test_a_kill_between_read_and_commit_loses_and_doubles_nothing(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    gang.write(0, "steps.rank0.jsonl", _step(1), _step(2))
    gang.nodes[0].files["/r/node0/out.log"] = b"hello\n"
    with monkeypatch.context() as patch:

        def die(*args: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(metrics, "add_log", die)
        with pytest.raises(KeyboardInterrupt):
            gang.collector().poll(gang.nodes[0])
    assert gang.points() == []
    gang.collector().poll(gang.nodes[0])
    assert [point.step for point in gang.points()] == [1, 2]
    assert _log(gang) == b"hello\n"


@pytest.mark.parametrize("seed", range(5))
def test_two_collectors_of_two_processes_lose_and_double_nothing(gang: Gang, seed: int) -> None:
    other = Store(gang.store.path)
    collectors = [gang.collector(), gang.collector(store=other)]
    chance = random.Random(seed)
    written = b""
    for number in range(1, 60):
        gang.write(0, "steps.rank0.jsonl", _step(number))
        written += b"line %d\n" % number
        gang.nodes[0].files["/r/node0/out.log"] = written
        for _ in range(chance.randrange(3)):
            which = chance.randrange(2)
            if chance.random() < 0.1:
                collectors[which] = gang.collector(store=(gang.store, other)[which])
            collectors[which].poll(gang.nodes[0])
    for collector in collectors * 2:
        collector.poll(gang.nodes[0])
    assert [point.step for point in gang.points()] == list(range(1, 60))
    assert _log(gang) == written
    other.close()


def test_an_unreachable_node_raises_and_takes_nothing(gang: Gang) -> None:
    gang.write(0, "steps.rank0.jsonl", _step(1))
    collector = gang.collector()
    gang.break_link(0)
    with pytest.raises(NodeError):
        collector.poll(gang.nodes[0])
    gang.nodes[0].broken = None
    collector.poll(gang.nodes[0])
    assert len(gang.points()) == 1


def test_a_full_disk_is_survived_without_loss(gang: Gang) -> None:
    collector = gang.collector()
    pages = gang.store.write(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
    gang.store.write(lambda c: c.execute(f"PRAGMA max_page_count = {pages}"))
    gang.nodes[0].files["/r/node0/out.log"] = b"x" * 500_000
    gang.write(0, "steps.rank0.jsonl", _step(1))
    with pytest.raises(StoreError, match="store_full"):
        collector.poll(gang.nodes[0])
    assert gang.points() == []
    gang.store.write(lambda c: c.execute("PRAGMA max_page_count = 1000000"))
    collector.poll(gang.nodes[0])
    assert len(gang.points()) == 1
    assert len(_log(gang)) == 500_000


def test_the_newest_bytes_of_a_long_log_stay(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "LOG_BYTES_KEPT", 50)
    collector = gang.collector()
    for number in range(100):
        gang.nodes[0].files["/r/node0/out.log"] = b"".join(b"%09d\n" % index for index in range(number + 1))
        collector.poll(gang.nodes[0])
    log = _log(gang)
    assert log.endswith(b"000000099\n")
    assert len(log) < 100


class TestFarBehind:
    """A log that grew faster than it is read. Its kept part is read at once, because the end of a node waits for it."""

    LINE = b"%09d\n"

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(collect, "READ_LIMIT", 200)
        monkeypatch.setattr(metrics, "LOG_BYTES_KEPT", 1000)

    def _lines(self, first: int, last: int) -> bytes:
        return b"".join(self.LINE % number for number in range(first, last))

    def _poll(self, gang: Gang, collector: Collector) -> int:
        """Return the number of polls until it is up to date."""
        polls = 1
        while collector.poll(gang.nodes[0]).more:
            polls += 1
        return polls

    @pytest.mark.parametrize("lines", [9, 10, 11, 100, 119, 120, 121, 150, 300, 5_000])
    def test_its_newest_lines_are_read_in_few_polls(self, gang: Gang, lines: int) -> None:
        whole = self._lines(0, lines)
        gang.nodes[0].files["/r/node0/out.log"] = whole
        assert self._poll(gang, gang.collector()) <= 25
        log = _log(gang)
        assert whole.endswith(log)
        assert len(log) >= min(len(whole), 800)

    def test_nothing_is_left_out_while_it_is_followed(self, gang: Gang) -> None:
        collector = gang.collector()
        for last in range(0, 100, 10):
            gang.nodes[0].files["/r/node0/out.log"] = self._lines(0, last)
            self._poll(gang, collector)
        assert _log(gang) == self._lines(0, 90)

    def test_what_follows_is_taken_up_where_it_was(self, gang: Gang) -> None:
        collector = gang.collector()
        gang.nodes[0].files["/r/node0/out.log"] = self._lines(0, 30)
        self._poll(gang, collector)
        gang.nodes[0].files["/r/node0/out.log"] = self._lines(0, 3_000)
        self._poll(gang, collector)
        for last in (3_001, 3_005, 3_020):
            gang.nodes[0].files["/r/node0/out.log"] = self._lines(0, last)
            self._poll(gang, gang.collector() if last == 3_005 else collector)
        assert self._lines(0, 3_020).endswith(_log(gang))
        assert len(_log(gang)) >= 800

    def test_steps_are_all_read(self, gang: Gang) -> None:
        gang.write(0, "steps.rank0.jsonl", *[_step(number) for number in range(1, 300)])
        self._poll(gang, gang.collector())
        assert [point.step for point in gang.points()] == list(range(1, 300))

    def test_half_a_secret_is_not_what_it_begins_with(self, gang: Gang) -> None:
        redact.hide("a-secret-of-this-test")
        for ahead in range(60):
            line = b"x" * ahead + b" a-secret-of-this-test and more\n"
            gang.nodes[0].files["/r/node0/out.log"] = line * 400
            collector = gang.collector()
            self._poll(gang, collector)
            assert b"of-this-test" not in _log(gang)


def test_heartbeats_keep_the_newest_and_a_short_history(gang: Gang) -> None:
    collector = gang.collector()
    for _ in range(5):
        gang.clock.now += 50
        gang.beat(0)
        assert collector.poll(gang.nodes[0]).heartbeat
    assert not collector.poll(gang.nodes[0]).heartbeat

    def count(connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT count(*) FROM heartbeats").fetchone()[0])

    with gang.store.read() as connection:
        assert count(connection) == 3
        assert metrics.newest_heartbeats(connection, RUN, 1)[0][0] == gang.clock.now


def test_each_local_rank_has_its_files() -> None:
    files = [source.file for source in files_of(range(8, 10))]
    ours = ["steps.rank8.jsonl", "rank8.log", "steps.rank9.jsonl", "rank9.log"]
    assert files == ["heartbeat.jsonl", "out.log", *ours]


def test_other_ranks_are_looked_at_less_often_and_wholly_at_the_end(gang: Gang) -> None:
    collector = Collector(gang.store, RUN, 1, gang.records[0], [0, 1], gang.clock)
    collector.poll(gang.nodes[0])
    gang.write(0, "steps.rank1.jsonl", _step(1))
    observed = []
    for _ in range(5):
        collector.poll(gang.nodes[0])
        observed.append(len(gang.points(rank=1)))
    assert observed == [0, 0, 0, 0, 1]
    gang.write(0, "steps.rank1.jsonl", _step(2))
    gang.exit(0)
    assert collector.poll(gang.nodes[0]).ended
    assert len(gang.points(rank=1)) == 2


def test_collector_knows_where_it_was_after_a_restart(gang: Gang, tmp_path: Path) -> None:
    gang.write(0, "steps.rank0.jsonl", _step(1))
    gang.collector().poll(gang.nodes[0])
    gang.write(0, "steps.rank0.jsonl", _step(2))
    Collector(gang.store, RUN, 1, gang.records[0], [0], gang.clock).poll(gang.nodes[0])
    with gang.store.read() as connection:
        assert [p.step for p in metrics.points(connection, RUN)] == [1, 2]
        assert not run_store.has_event(connection, RUN, 1, EventKind.NODE_EXITED)

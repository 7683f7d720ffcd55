"""`megaboard status` of one run shows the same times as its page."""

import json
import time
from pathlib import Path

import pytest

from app.main import main
from backend.runs.states import EventKind
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun

RUN = "20260101-000000-qwen3-vl-8b-sft-aaaa"


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("en", "Elapsed: 1 h 01 min, of 2 attempts, without the pauses"),
        ("zh", "已用时间：1 小时 01 分；共 2 次启动，不含间隔"),
    ],
)
def test_status_shows_the_duration_of_the_attempts_without_the_pause_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lang: str, words: str
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=time.time() - 90_000, addresses=["10.0.0.1", "10.0.0.2"])
    run.start()
    run.now += 3600
    run.add_event(EventKind.STOP_REQUESTED)
    run.add_event(EventKind.STOPPED)
    run.now += 40_000
    run.add_event(EventKind.RESUMED)
    run.attempt += 1
    run.begin(30)
    run.start()
    run.now += 60
    run.add_event(EventKind.FINISHED)
    store.close()
    assert main(["--lang", lang, "status", RUN]) == 0
    assert words in capsys.readouterr().out.splitlines()
    assert main(["status", RUN, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["elapsed"] == {"done_s": pytest.approx(3660.0), "since": None}


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        (
            "en",
            [
                "Loss is not finite at step 40",
                "The gradient norm has risen to 20 by step 90; it was 0.8123",
                "10.0.0.2 has 91.25 GiB left for checkpoints, and the newest takes 60.5 GiB: there is no room for two. "
                "Free some space before the next one (`df -h`, `quota -s`)",
                "10.0.0.2, rank 9: GPU memory ran short by step 91, and torch emptied its cache to allocate again "
                "(so far: 3). This is slow, and out-of-memory errors often follow",
                "torch reserves 75 GiB by step 20; the plan said 40 to 62 GiB (80% interval)",
            ],
        ),
        (
            "zh",
            [
                "第 40 步的 loss 为非有限值",
                "到第 90 步梯度范数已升至 20，此前为 0.8123",
                "10.0.0.2 上存放 checkpoint 的磁盘只剩 91.25 GiB，最近一个 checkpoint 占 60.5 GiB，不够再写两个。"
                "请在下次保存前清理空间（`df -h`、`quota -s`）",
                "10.0.0.2，rank 9：到第 91 步显存已不够用，torch 已 3 次清空缓存后重新分配；"
                "这会拖慢训练，也是显存不足的前兆",
                "到第 20 步，torch 保留 75 GiB，方案预计 40 至 62 GiB（80% 区间）",
            ],
        ),
    ],
)
def test_status_shows_the_newest_alert_of_each_kind_in_this_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lang: str, words: list[str]
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    store = Store(tmp_path / "megaboard.db")
    run = StoredRun(store, RUN, now=time.time() - 90_000, addresses=["10.0.0.1", "10.0.0.2"])
    run.start()
    run.add_event(EventKind.LOSS_ROSE, step=3, loss=7.0, usual=1.0)
    run.restart()
    run.add_event(EventKind.GRAD_NORM_ROSE, step=30, grad_norm=9.0, usual=1.0)
    run.add_event(EventKind.LOSS_NOT_FINITE, step=40, loss="nan")
    run.add_event(EventKind.GRAD_NORM_ROSE, step=90, grad_norm=20.0, usual=0.81234)
    run.add_event(EventKind.DISK_LOW, 1, step=90, room=1, inode=5, free_gib=91.25, checkpoint_gib=60.5)
    run.add_event(EventKind.ALLOC_RETRIES, 1, step=91, of_rank=9, retries=3)
    detail = {"figure": "memory", "side": "high", "step": 20, "measured": 75.0, "low": 40.0, "high": 62.0}
    run.add_event(EventKind.OUTSIDE_INTERVAL, 0, **detail)
    run.add_event(EventKind.FAILING)
    run.add_event(EventKind.FAILED)
    store.close()
    assert main(["--lang", lang, "status", RUN]) == 0
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    first = lines.index(words[0])
    assert lines[first : first + len(words)] == words

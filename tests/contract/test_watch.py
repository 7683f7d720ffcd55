"""`megaboard watch`: an external training over real sshd is read and never changed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo.local_nodes import LocalNodes
from app.main import main
from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.problems import ProblemsError
from backend.runs.collect.external_run import watched_job
from backend.runs.controller import Controller
from backend.runs.states import RunState
from backend.runs.store.store import Store
from tests.waiting import WITHIN_S, wait_for

pytestmark = pytest.mark.contract

LINE = '{{"current_steps": {step}, "total_steps": 40, "loss": {loss}, "lr": 1e-4, "elapsed_time": "0:00:{step:02d}"}}\n'


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Path]:
    """Yield the output folder of a running external training: a process, its log and its steps."""
    folder = tmp_path / "runs" / "their-run"
    folder.mkdir(parents=True)
    (folder / "trainer_log.jsonl").write_text("".join(LINE.format(step=n, loss=5 - n / 10) for n in range(1, 4)))
    (folder / "train.log").write_text("it begins\n")
    (folder / "checkpoint-2").mkdir()
    process = subprocess.Popen(["sleep", "300"], cwd=folder)
    yield folder
    assert process.poll() is None, "it was ended"
    process.kill()
    process.wait()


@pytest.fixture
def controller(cluster: LocalNodes, tmp_path: Path) -> Iterator[Controller]:
    home = tmp_path / "home"
    home.mkdir()
    store = Store(home / "megaboard.db")
    controller = Controller(home, store, KnownHosts(home / "known_hosts", cluster.folder / "known_hosts"))
    yield controller
    controller.close()
    store.close()


def hosts(cluster: LocalNodes) -> list[dict[str, Any]]:
    return [{"address": host.address, "port": host.port, "user": host.user, "identity_file": host.identity_file}
            for host in cluster.hosts()[:2]]  # fmt: skip


def look_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return every file in a folder with its size and the time of its last change."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in [folder, *folder.rglob("*")]}


@pytest.mark.e2e
def test_a_training_is_read_as_it_goes_on_and_nothing_on_its_nodes_changes(
    cluster: LocalNodes, controller: Controller, training: Path
) -> None:
    before, created = look_of(training), look_of(cluster.run_root)
    run = controller.watch(watched_job(hosts(cluster), str(training)))
    controller.start()
    wait_for(lambda: len(controller.points(run)) == 3)
    assert look_of(training) == before
    assert look_of(cluster.run_root) == created, "no run folder, no lock"
    with (training / "trainer_log.jsonl").open("a") as file:
        file.write(LINE.format(step=4, loss=4.5) + '{"current_steps": 5, "total')
    wait_for(lambda: len(controller.points(run)) == 4)
    with (training / "trainer_log.jsonl").open("a") as file:
        file.write('_steps": 40, "loss": 4.4, "elapsed_time": "0:00:07"}\n')
    wait_for(lambda: len(controller.points(run)) == 5)
    wait_for(lambda: all(node.host.get("memory_total_mib") for node in controller.snapshot(run).nodes))
    snapshot = controller.snapshot(run)
    assert (snapshot.state, snapshot.step, snapshot.total_steps, snapshot.loss) == (RunState.WATCHED, 5, 40, 4.4)
    assert [node.state for node in snapshot.nodes] == ["watched", "watched"]
    assert snapshot.tokens_per_s is None, "nobody tells how many tokens a step has"
    assert [point.step for point in controller.points(run)] == [1, 2, 3, 4, 5]
    assert controller.log(run, 0, "train.log") == "it begins\n"
    after = look_of(training)
    controller.stop(run)
    wait_for(lambda: controller.snapshot(run).state is RunState.UNWATCHED)
    assert look_of(training) == after
    with pytest.raises(ProblemsError, match="cannot_resume"):
        controller.resume(run)


def test_megatrons_own_log_is_enough(cluster: LocalNodes, controller: Controller, training: Path) -> None:
    (training / "trainer_log.jsonl").unlink()
    lines = [
        f" iteration {n:8d}/      50 | elapsed time per iteration (ms): 1200.0 | lm loss: {10 - n}.0 |" for n in (1, 2)
    ]
    (training / "their.output").write_text("\n".join(["hello", *lines, ""]))
    (training / "train.log").unlink()
    with pytest.raises(ProblemsError, match="nothing_to_watch"):
        controller.watch(watched_job(hosts(cluster)[:1], str(training)))
    run = controller.watch(watched_job(hosts(cluster)[:1], str(training)), "their.output")
    assert not controller.wait(run, 0.5).is_final
    wait_for(lambda: controller.points(run))
    assert [(point.step, point.loss, point.step_s) for point in controller.points(run)] == [(1, 9, 1.2), (2, 8, 1.2)]
    assert "hello" in controller.log(run, 0, "their.output")


def test_what_is_no_target_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    for target in ("host", ":/folder", "host:", "host:relative", "host:/a b", "-o:/x", "host:/$(id)"):
        assert main(["--lang", "en", "watch", "--", target]) == 2, target
    assert "HOST:OUTPUT_DIR" in capsys.readouterr().err


@pytest.mark.e2e
def test_the_command_prints_steps_until_it_is_interrupted(cluster: LocalNodes, training: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "known_hosts").write_text((cluster.folder / "known_hosts").read_text())
    host = cluster.hosts()[0]
    command = ["watch", f"{host.user}@{host.address}:{training}", "--port", str(host.port), "--key", host.identity_file]
    process = subprocess.Popen(
        [sys.executable, "-m", "app.main", "--lang", "en", *map(str, command)],
        env={**os.environ, "MEGABOARD_HOME": str(home)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # What runs in the background may ignore it, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout
    assert "Megaboard changes nothing on the nodes" in process.stdout.readline()
    lines = [process.stdout.readline() for _ in range(3)]
    assert [re.search(r"step (\d+)/40", line)[1] for line in lines] == ["1", "2", "3"]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WITHIN_S)
    assert "megaboard stop" in errors
    assert process.returncode == 0

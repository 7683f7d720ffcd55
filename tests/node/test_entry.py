"""The entry script under real torchrun and gloo, one rank per node. Only the engine is a fast stand-in."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.node.training import entry, rank_facts, step_lines, swift_entry
from tests.nodes import needs_node_environment
from tests.waiting import wait_for, whole_lines
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e, needs_node_environment]

WITHIN_S = 200.0

# Calls the callbacks as transformers' Trainer does (transformers 5.6 trainer.py: step begin, step end, log, save).
ENGINE = """
import os, time, types
import torch.distributed as dist
from transformers import TrainerControl, TrainerState

def run_exp(args, callbacks):
    dist.init_process_group("gloo")
    rank, (callback,) = dist.get_rank(), callbacks
    print("rank", rank, "speaks")
    state, control = TrainerState(max_steps=args["steps"]), TrainerControl()
    callback.on_train_begin(args, state, control)
    while state.global_step < args["steps"] and not control.should_training_stop:
        callback.on_step_begin(args, state, control)
        time.sleep(0.01 * (rank + 1))
        if args.get("fail") and state.global_step == 2:
            raise ValueError("the engine does not like it")
        state.global_step += 1
        state.epoch = state.global_step / 10
        state.num_input_tokens_seen += 100
        control.should_log = state.global_step % 2 == 0
        callback.on_step_end(args, state, control)
        if control.should_log:
            logs = {"loss": 3.0 / state.global_step, "grad_norm": float("nan"), "learning_rate": 0.1}
            callback.on_log(args, state, control, logs=logs)
        if control.should_save:
            print("saved at step", state.global_step)
        if state.global_step == args.get("save_at"):
            folder = f"{args['output_dir']}/checkpoint-{state.global_step}"
            os.makedirs(f"{folder}/parts", exist_ok=True)
            with open(f"{folder}/parts/{rank}", "wb") as file:
                file.write(bytes(1000))
            callback.on_save(types.SimpleNamespace(output_dir=args["output_dir"]), state, control)
    callback.on_log(args, state, control, logs={"train_loss": 1.0})
    callback.on_train_end(args, state, control)
    dist.destroy_process_group()
"""

# Calls the callbacks as ms-swift's Megatron trainer does (ms-swift 4.6.0 swift/megatron/trainers/base.py).
SWIFT = {
    "swift/__init__.py": "",
    "swift/cli/__init__.py": "",
    "swift/cli/main.py": """
import json
def parse_yaml_args(argv):
    with open(argv[0]) as file:
        argv[0:1] = [word for key, value in json.load(file).items() for word in (f"--{key}", str(value))]
""",
    "swift/megatron/callbacks/__init__.py": "",
    "swift/megatron/callbacks/mapping.py": "megatron_callbacks_map = {}",
    "swift/megatron/callbacks/base.py": """
class MegatronCallback:
    def __init__(self, trainer):
        self.trainer, self.args, self.state = trainer, trainer.args, trainer.state
""",
    "swift/megatron/__init__.py": """
import types
import torch.distributed as dist
from swift.megatron.callbacks.mapping import megatron_callbacks_map

def megatron_sft_main(argv):
    dist.init_process_group("gloo")
    given = dict(zip(argv[::2], argv[1::2]))
    args = types.SimpleNamespace(train_iters=int(given["--train_iters"]))
    state = types.SimpleNamespace(iteration=0, should_save=False)
    callback = megatron_callbacks_map[given["--callbacks"]](types.SimpleNamespace(args=args, state=state))
    while state.iteration < args.train_iters:
        callback.on_step_begin()
        state.iteration += 1
        callback.on_step_end()
        if state.iteration % 2 == 0:
            callback.on_log({"loss": 3.0 / state.iteration, "grad_norm": None, "learning_rate": 0.1})
        if state.should_save:
            state.should_save = False
            print("saved at step", state.iteration)
    callback.on_train_end()
    dist.destroy_process_group()
""",
}


class Gang:
    """A run folder and a torchrun for each node."""

    def __init__(self, root: Path, config: dict[str, Any], nodes: int, **variables: str) -> None:
        self.folders = [root / f"node{rank}" for rank in range(nodes)]
        self.variables = variables
        for folder in self.folders:
            (folder / "llamafactory" / "train").mkdir(parents=True)
            (folder / "llamafactory" / "__init__.py").touch()
            (folder / "llamafactory" / "train" / "__init__.py").touch()
            (folder / "llamafactory" / "train" / "tuner.py").write_text(ENGINE)
            (folder / "control").mkdir()
            (folder / "config.yaml").write_text(json.dumps(config))
            for name, text in SWIFT.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
            for module in (entry, rank_facts, step_lines, swift_entry):
                shutil.copy(module.__file__, folder)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.processes = [self._start(rank, port) for rank in range(nodes)]

    def _start(self, rank: int, port: int) -> "subprocess.Popen[bytes]":
        folder = self.folders[rank]
        command = [NODE_PYTHON, "-m", "torch.distributed.run", "--nnodes", str(len(self.folders))]
        command += ["--node_rank", str(rank), "--nproc_per_node", "1"]
        command += ["--master_addr", "127.0.0.1", "--master_port", str(port)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **self.variables}
        with (folder / "out.log").open("wb") as log:
            return subprocess.Popen([*command, folder / "entry.py", folder], stdout=log, stderr=log, env=environment)

    def __enter__(self) -> "Gang":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
            process.wait(timeout=WITHIN_S)

    def wait(self) -> list[int]:
        return [process.wait(timeout=WITHIN_S) for process in self.processes]

    def wait_for_steps(self, count: int) -> None:
        wait_for(lambda: len(self.steps(0)) >= count, WITHIN_S)

    def steps(self, rank: int) -> list[dict[str, Any]]:
        """Return the lines of steps, without those that hold only logged metrics."""
        rows = [json.loads(line) for line in whole_lines(self.folders[rank] / f"steps.rank{rank}.jsonl")]
        return [row for row in rows if "step_s" in row]


def stop_on_one_node(gang: Gang) -> None:
    """All ranks end after the same step, each step has a line, and there is a checkpoint."""
    gang.wait_for_steps(5)
    (gang.folders[1] / "control" / "stop").touch()
    assert gang.wait() == [0, 0]
    last = gang.steps(0)[-1]["step"]
    for rank, folder in enumerate(gang.folders):
        assert [row["step"] for row in gang.steps(rank)] == list(range(1, last + 1))
        assert f"saved at step {last}\n" in (folder / f"rank{rank}.log").read_text()
        assert (folder / "control" / "stopped").exists()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    """Return a gang of two ranks that saved after step 2 and was stopped on one node."""
    root = tmp_path_factory.mktemp("gang")
    config = {"steps": 1_000_000, "save_at": 2, "output_dir": str(root / "results")}
    with Gang(root, config, nodes=2) as gang:
        stop_on_one_node(gang)
        yield gang


def test_steps_are_lines_and_a_wish_to_stop_on_one_node_ends_all_ranks_after_the_same_step(stopped: Gang) -> None:
    for rank, folder in enumerate(stopped.folders):
        rows = stopped.steps(rank)
        assert [row.get("loss") for row in rows[:5]] == [None, 1.5, None, 0.75, None]
        assert "NaN" in (folder / f"steps.rank{rank}.jsonl").read_text()
        assert {(row["protocol"], row["total_steps"], row["tokens"]) for row in rows} == {(1, 1_000_000, 100)}
        assert all(row["step_s"] >= 0.01 * (rank + 1) for row in rows)
        assert "saved" not in (folder / "out.log").read_text()


def test_the_step_after_a_save_tells_what_all_ranks_wrote_and_the_room_that_is_left(stopped: Gang) -> None:
    results = stopped.folders[0].with_name("results")
    for rank in (0, 1):
        rows = stopped.steps(rank)
        assert [row.get("checkpoint_bytes") for row in rows[:4]] == [None, None, 2000, None]
        assert 0 < rows[2]["free_bytes"] <= shutil.disk_usage(results).total
        assert rows[2]["results_inode"] == results.stat().st_ino


def test_ms_swift_writes_the_same_lines_and_stops_in_the_same_way(tmp_path: Path) -> None:
    with Gang(tmp_path, {"train_iters": 1_000_000}, nodes=2, MEGABOARD_TRAINER="swift-sft") as gang:
        stop_on_one_node(gang)
        for rank in (0, 1):
            assert [row.get("loss") for row in gang.steps(rank)[:4]] == [None, 1.5, None, 0.75]


def test_a_failure_tells_its_traceback_in_the_rank_log_and_on_the_console(tmp_path: Path) -> None:
    with Gang(tmp_path, {"steps": 5, "fail": True}, nodes=1) as gang:
        assert gang.wait() != [0]
        for name in ("rank0.log", "out.log"):
            assert "ValueError: the engine does not like it" in (gang.folders[0] / name).read_text()
        assert not (gang.folders[0] / "control" / "stopped").exists()


def test_it_is_short_enough_to_be_read_before_it_is_trusted() -> None:
    assert len(Path(entry.__file__).read_text().splitlines()) < 150

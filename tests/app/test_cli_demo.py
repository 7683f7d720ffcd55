"""The demo prints correctly what its page can do. It ends as its user requests, with every run on its nodes."""

import argparse
import fcntl
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import demo
from app.cli.demo import save_demo_job, stop_runs
from app.demo import tiny_model
from app.demo.job import demo_job, demo_name
from app.demo.local_nodes import LocalNodes
from app.demo.node_environment import READY
from app.demo.password_files import _remove_unlocked
from app.demo.password_files import password_files as written_passwords
from app.home import store_path
from app.services import Services
from app.text import LANGUAGES, t
from app.wizard.events import change
from app.wizard.start import from_recipe, recipe_list
from backend.job.mapping import load_mapping
from backend.runs.states import EventKind, RunState
from backend.runs.store import run_store
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun

NOW = 1_800_000_000.0


def test_runs_that_the_demo_ends_count_as_stopped_and_queued_runs_stay_queued(tmp_path):
    store = Store(store_path(tmp_path))
    trains, stops, waits, over = (
        StoredRun(store, f"20260101-00000{number}-run-aaaa", now=NOW, attempted=number != 2) for number in range(4)
    )
    for run in (trains, stops, over):
        run.start()
    stops.add_event(EventKind.STOP_REQUESTED, save=True)
    over.add_event(EventKind.FINISHED)
    store.close()
    stop_runs(tmp_path, NOW + 9)
    stop_runs(tmp_path, NOW + 10)
    store = Store(store_path(tmp_path))
    with store.read() as connection:
        states = [run_store.state_of(connection, run.id) for run in (trains, stops, waits, over)]
        kinds = [event.kind for event in run_store.events(connection, trains.id)]
    store.close()
    assert states == [RunState.STOPPING, RunState.STOPPING, RunState.QUEUED, RunState.FINISHED]
    assert kinds.count(EventKind.STOP_REQUESTED) == 1


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    """Return the demo's job in a home folder whose model a test wrote."""
    (tmp_path / tiny_model.MODEL_FOLDER).mkdir()
    (tmp_path / tiny_model.MODEL_FOLDER / "config.json").write_text('{"model_type": "qwen3"}')
    return job_on_ports(tmp_path, 30_000)


def job_on_ports(home: Path, first: int) -> dict[str, Any]:
    """Return the demo's job on nodes whose servers were started on four ports."""
    (home / "cluster").mkdir(exist_ok=True)
    nodes = {rank: {"pid": 1, "start": 0, "port": first + rank} for rank in range(4)}
    (home / "cluster" / "nodes.json").write_text(json.dumps(nodes))
    return demo_job(home, LocalNodes(home / "cluster").cluster_mapping("python"))


def draft_in(home: Path) -> dict[str, Any]:
    store = Store(store_path(home))
    try:
        return dict(load_mapping(store.get_draft() or "")[0])
    finally:
        store.close()


def test_a_new_demo_has_its_job_as_the_draft(tmp_path: Path, job: dict[str, Any]):
    assert save_demo_job(tmp_path, job) is True
    assert draft_in(tmp_path) == job
    assert save_demo_job(tmp_path, job) is True, "started again without an edit"
    assert (tmp_path / "clusters" / "demo.yaml").stat().st_mode & 0o777 == 0o600


def test_an_edited_draft_is_kept_and_not_reported_as_the_demo_s_job(tmp_path, job):
    save_demo_job(tmp_path, job)
    services = Services.open(tmp_path, demo=job)
    change(services, from_recipe("qwen3-32b-zero3", services.demo).edits)
    edited = services.draft.job_mapping()
    services.close()
    assert save_demo_job(tmp_path, job) is False
    assert draft_in(tmp_path) == edited


def test_changed_ports_are_written_to_the_draft_of_the_demo_s_job(tmp_path, job):
    save_demo_job(tmp_path, job)
    moved = job_on_ports(tmp_path, 31_111)
    assert save_demo_job(tmp_path, moved) is True
    assert draft_in(tmp_path)["cluster"] == moved["cluster"]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_demo_prints_the_same_recipe_name_as_the_page(job, lang):
    first = recipe_list(lang, job)[0]
    assert first["key"] == "demo"
    assert first["name"] in t(lang, "cli.demo.other", name=demo_name(job, lang))


@pytest.fixture
def run_demo(tmp_path, monkeypatch, job):
    """Return a function that runs the demo without nodes; `serve` stands for the page, and gets the password's hash."""
    nodes = SimpleNamespace(folder=tmp_path, stop=list)
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "LocalNodes", lambda *_: nodes)
    monkeypatch.setattr(demo, "find_sshd", lambda: "sshd")
    monkeypatch.setattr(demo, "_start_nodes", lambda *_: job)
    monkeypatch.setattr(demo.signal, "signal", lambda *_: None)

    def run(serve, is_terminal=False):
        monkeypatch.setattr(demo, "serve_page", lambda home, binding, listener, password, *_, **__: serve(password))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
        parser = argparse.ArgumentParser()
        demo.add_arguments("demo", parser, "en")
        demo.run(parser.parse_args(["--node-python", sys.executable, "--port", "0"]), "en")

    return run


def password_files(home):
    return list((home / "demo").glob("password-*.txt"))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_password_is_printed_on_a_terminal_and_else_written_to_a_private_file(
    tmp_path, capsys, run_demo, is_terminal
):
    def serve(password_hash):
        printed = capsys.readouterr().out
        files = password_files(tmp_path)
        assert len(files) == (0 if is_terminal else 1)
        if is_terminal:
            password = re.search(t("en", "cli.demo.password", password=r"(\S+)"), printed)[1]
        else:
            password = files[0].read_text().strip()
            assert files[0].stat().st_mode & 0o777 == 0o600
            assert str(files[0]) in printed
            assert password not in printed
        assert password_hash.matches(password)

    run_demo(serve, is_terminal)


def test_the_file_of_the_password_goes_with_the_demo(tmp_path, run_demo):
    def end_by_signal(_):
        (file,) = password_files(tmp_path)
        seen.append(file)
        sys.exit(1)  # as the handler of SIGTERM does

    seen = []
    with pytest.raises(SystemExit):
        run_demo(end_by_signal)
    run_demo(lambda _: seen.append(password_files(tmp_path)))
    assert len(seen) == 2
    assert password_files(tmp_path) == []


def test_a_file_that_another_demo_removes_before_it_is_locked_is_written_again(tmp_path, monkeypatch):
    lock = fcntl.flock

    def lock_late(file, operation):
        monkeypatch.setattr(fcntl, "flock", lock)
        _remove_unlocked(tmp_path)  # by the other demo
        lock(file, operation)

    with written_passwords(tmp_path) as write:
        monkeypatch.setattr(fcntl, "flock", lock_late)
        path = write("hunter2")
        assert path.read_text().strip() == "hunter2"
        _remove_unlocked(tmp_path)
        assert path.exists()
    assert not path.exists()


def test_a_demo_removes_the_files_of_demos_that_were_killed_and_not_those_of_one_that_runs(tmp_path, run_demo):
    stale = tmp_path / "demo" / "password-5.txt"
    stale.parent.mkdir()
    stale.write_text("left by a demo that was killed")

    def serve(_):
        assert stale not in (files := password_files(tmp_path))
        run_demo(lambda _: None, is_terminal=True)
        assert password_files(tmp_path) == files

    run_demo(serve)
    assert password_files(tmp_path) == []


def test_the_demo_uses_the_checkout_s_environment_if_there_is_one(tmp_path, monkeypatch):
    python = tmp_path / ".venv-node" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / ".venv-node" / READY).touch()
    monkeypatch.setattr(demo, "CHECKOUT", tmp_path)
    monkeypatch.setattr(demo, "build", pytest.fail)
    assert demo._built_python("en") == python


def test_the_demo_builds_an_environment_in_the_cache_without_a_checkout(tmp_path, monkeypatch):
    builds = []
    monkeypatch.setattr(demo, "CHECKOUT", tmp_path)
    monkeypatch.setattr(demo, "build", lambda folder, *_: builds.append(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert demo._built_python("en") == builds[0] / "bin" / "python"
    assert builds[0].parent == tmp_path / "cache" / "megaboard"

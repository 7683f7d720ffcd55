"""`megaboard demo`: start four SSH nodes on this machine, and serve the page with a job that is ready to launch."""

import argparse
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from app.cli.output import FAILED
from app.cli.serve import add_binding, binding_of, password_from_file, password_text, print_error, serve_page
from app.demo import tiny_model
from app.demo.job import demo_job, demo_name
from app.demo.local_nodes import DemoError, LocalNodes, find_sshd
from app.demo.node_environment import NodeEnvironmentError, base_python, build, cache_folder, is_ready
from app.demo.password_files import password_files
from app.home import home_path, make_home, save_cluster, store_path
from app.private_file import PrivateFileError
from app.text import t
from app.web.binding import ServerError
from app.web.passwords import PasswordHash, random_password
from backend.job.mapping import dump_mapping, load_mapping
from backend.runs.database import Database

CHECKOUT = Path(__file__).parents[2]


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `demo`."""
    add_binding(parser, lang)
    option = parser.add_argument
    option("--node-python", type=Path, help=t(lang, "cli.demo.node_python.help"))
    option("--nodes", type=int, default=4, choices=range(1, 9), help=t(lang, "cli.demo.nodes.help"))
    option("--keep", action="store_true", help=t(lang, "cli.demo.keep.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Start the nodes and serve the page. When the page ends, stop the nodes and their runs."""
    if args.node_python and not args.node_python.is_file():
        print(t(lang, "cli.error.no_node_python", path=args.node_python), file=sys.stderr)
        return FAILED
    try:
        find_sshd()
        node_python = args.node_python or _built_python(lang)
    except (DemoError, NodeEnvironmentError) as error:
        reason = error.text(lang) if isinstance(error, NodeEnvironmentError) else error
        print(t(lang, "cli.error.demo", reason=reason), file=sys.stderr)
        return FAILED
    try:
        binding = binding_of(args)
        password = password_from_file(args, home_path() / "demo")
        new_password = None if password else random_password()
        listener = binding.listen()
    except (ServerError, PrivateFileError) as error:
        return print_error(error, lang)
    # The page handles signals later. Until then, SIGTERM must run the clean-up below, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))
    end = t(lang, "cli.demo.keeps" if args.keep else "cli.demo.ends")
    home = make_home(home_path() / "demo")
    with listener, password_files(home) as write_password:
        # Not the home itself: the page writes its own known_hosts there.
        cluster = LocalNodes(home / "cluster", args.nodes)
        try:
            job = _start_nodes(home, cluster, str(node_python.absolute()), lang)
            draft = "cli.demo.filled" if save_demo_job(home, job) else "cli.demo.other"
            name = demo_name(job, lang)
            login = t(lang, "cli.serve.password.given")
            if new_password:
                login = password_text(lang, new_password, "cli.demo.password", write_password)
            print(t(lang, "cli.demo.ready", nodes=args.nodes), t(lang, draft, name=name), login, sep="\n", flush=True)
            password = password or PasswordHash.of(str(new_password))
            return serve_page(home, binding, listener, password, lang, end, demo=job)
        except (DemoError, subprocess.CalledProcessError) as error:
            print(t(lang, "cli.error.demo", reason=_reason(error)), file=sys.stderr)
            return FAILED
        finally:
            _stop_nodes(cluster, home, lang, keep=args.keep)


def _built_python(lang: str) -> Path:
    """Return the Python of the checkout's node environment, or build that environment in the user's cache."""
    folder = CHECKOUT / ".venv-node"
    if not is_ready(folder):
        base = base_python()
        folder = cache_folder(base)
        build(folder, base, lang, lambda line: print(line, flush=True))
    return folder / "bin" / "python"


def _start_nodes(home: Path, cluster: LocalNodes, python: str, lang: str) -> dict[str, Any]:
    """Build the model, start the nodes, and return the demo's job."""
    print(t(lang, "cli.demo.building"), flush=True)
    subprocess.run([python, tiny_model.__file__, str(home)], check=True, capture_output=True, text=True)
    cluster.start()
    return demo_job(home, cluster.cluster_mapping(python))


def save_demo_job(home: Path, job: dict[str, Any]) -> bool:
    """Save the demo's cluster, and its job as the draft if there is no draft yet.

    Returns whether the draft is the unchanged job of the demo.
    """
    cluster = job["cluster"]
    save_cluster(home, "demo", cluster, replace=True)
    database = Database.open(store_path(home))
    try:
        text = database.store.get_draft()
        draft, problem = load_mapping(text) if text else (job, None)
        if problem:
            # The page, too, replaces a draft that it cannot read.
            draft = job
        if _is_demo(draft.get("cluster"), cluster):
            # Another program may have taken a port of the last start.
            ports = {key: cluster[key] for key in ("hosts", "port_range")}
            draft = {**draft, "cluster": {**draft["cluster"], **ports}}
        database.store.set_draft(dump_mapping(draft))
    finally:
        database.close()
    return draft == job


def _is_demo(draft_cluster: Any, cluster: dict[str, Any]) -> bool:
    return isinstance(draft_cluster, dict) and draft_cluster.get("run_root") == cluster["run_root"]


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return (error.stderr or "").strip().rpartition("\n")[2] or str(error)
    return str(error)


def _stop_nodes(cluster: LocalNodes, home: Path, lang: str, *, keep: bool) -> None:
    if keep:
        print(t(lang, "cli.demo.kept", folder=cluster.folder), flush=True)
        return
    try:
        stop_runs(home, time.time())
    finally:
        alive = cluster.stop()
    print(t(lang, "cli.demo.left", left=alive) if alive else t(lang, "cli.demo.stopped"), flush=True)


def stop_runs(home: Path, now: float) -> None:
    """Record a stop request for every run: otherwise the next demo takes their end for a failure and restarts them."""
    with closing(Database.open(store_path(home))) as database:
        database.request_stops(now)

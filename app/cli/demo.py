"""`megaboard demo`: four SSH nodes on this machine and the page, filled in and ready to launch."""

import argparse
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from app.cli.output import FAILED
from app.cli.serve import add_binding, binding_of, explain, given_password, serve_page
from app.demo import tiny_model
from app.demo.job import demo_job, demo_name
from app.demo.local_nodes import DemoError, LocalNodes, find_sshd
from app.demo.node_environment import NodeEnvironmentError, base_python, build, cache_folder, is_ready
from app.home import home_path, make_home, store_path
from app.private_file import PrivateFileError
from app.text import t
from app.web.binding import ServerError
from app.web.passwords import PasswordHash, random_password
from backend.job.mapping import dump_mapping, load_mapping
from backend.runs.database import Database

CHECKOUT = Path(__file__).parents[2]


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `demo`."""
    add_binding(parser, lang)
    option = parser.add_argument
    option("--node-python", type=Path, help=t(lang, "cli.demo.node_python.help"))
    option("--nodes", type=int, default=4, choices=range(1, 9), help=t(lang, "cli.demo.nodes.help"))
    option("--keep", action="store_true", help=t(lang, "cli.demo.keep.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Start the nodes, serve the page, and stop the nodes with their jobs when the page ends."""
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
        made = None if (password := given_password(args, home_path() / "demo")) else random_password()
        listener = binding.listen()
    except (ServerError, PrivateFileError) as error:
        return explain(error, lang)
    # Until the page answers signals itself, an end by SIGTERM must pass through the cleaning up below too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))
    told = t(lang, "cli.demo.password", password=made) if made else t(lang, "cli.serve.password.given")
    end = t(lang, "cli.demo.keeps" if args.keep else "cli.demo.ends")
    with listener:
        home = make_home(home_path() / "demo")
        # Not the home itself: there the page keeps the host keys that its user has confirmed.
        cluster = LocalNodes(home / "cluster", args.nodes)
        try:
            job = _make_ready(home, cluster, str(node_python.absolute()), lang)
            filled = "cli.demo.filled" if fill_in(home, job) else "cli.demo.other"
            name = demo_name(job, lang)
            print(t(lang, "cli.demo.ready", nodes=args.nodes), t(lang, filled, name=name), told, sep="\n", flush=True)
            hashed = password or PasswordHash.of(str(made))
            return serve_page(home, binding, listener, hashed, lang, end, demo=job)
        except (DemoError, subprocess.CalledProcessError) as error:
            print(t(lang, "cli.error.demo", reason=_reason(error)), file=sys.stderr)
            return FAILED
        finally:
            _end(cluster, home, lang, keep=args.keep)


def _built_python(lang: str) -> Path:
    """Return the Python of the checkout's node environment, else of the one in the user's cache, built if missing."""
    folder = CHECKOUT / ".venv-node"
    if not is_ready(folder):
        base = base_python()
        folder = cache_folder(base)
        build(folder, base, lang, lambda line: print(line, flush=True))
    return folder / "bin" / "python"


def _make_ready(home: Path, cluster: LocalNodes, python: str, lang: str) -> dict[str, Any]:
    """Build the model, start the nodes, and return the demo's job."""
    print(t(lang, "cli.demo.building"), flush=True)
    subprocess.run([python, tiny_model.__file__, str(home)], check=True, capture_output=True, text=True)
    cluster.start()
    return demo_job(home, cluster.cluster_mapping(python))


def fill_in(home: Path, job: dict[str, Any]) -> bool:
    """Save the demo's cluster under its name, and put its job in the page unless another is being edited.

    Returns whether the page holds the demo's job as it was made.
    """
    cluster = job["cluster"]
    clusters = home / "clusters"
    clusters.mkdir(mode=0o700, exist_ok=True)
    (clusters / "demo.yaml").write_text(dump_mapping(cluster), encoding="utf-8")
    database = Database.open(store_path(home))
    try:
        text = database.store.get_draft()
        draft, problem = load_mapping(text) if text else (job, None)
        if problem:
            # The page replaces what it cannot read.
            draft = job
        if _is_demo(draft.get("cluster"), cluster):
            # The ports are those of the last start unless something took them meanwhile.
            draft = {**draft, "cluster": {**draft["cluster"], "hosts": cluster["hosts"]}}
        database.store.set_draft(dump_mapping(draft))
    finally:
        database.close()
    return draft == job


def _is_demo(edited: Any, cluster: dict[str, Any]) -> bool:
    return isinstance(edited, dict) and edited.get("run_root") == cluster["run_root"]


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return (error.stderr or "").strip().rpartition("\n")[2] or str(error)
    return str(error)


def _end(cluster: LocalNodes, home: Path, lang: str, *, keep: bool) -> None:
    if keep:
        print(t(lang, "cli.demo.kept", folder=cluster.folder), flush=True)
        return
    try:
        stop_runs(home, time.time())
    finally:
        left = cluster.stop()
    print(t(lang, "cli.demo.left", left=left) if left else t(lang, "cli.demo.stopped"), flush=True)


def stop_runs(home: Path, now: float) -> None:
    """Record that the runs on the nodes are to end: the next demo would take their end for a failure and go on."""
    with closing(Database.open(store_path(home))) as database:
        database.request_stops(now)

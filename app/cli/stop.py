"""`megaboard stop`: stop a run on all nodes, even if the database cannot be opened."""

import argparse
from contextlib import closing

from app.cli.common import find_run, state_words
from app.cli.output import DONE, FAILED
from app.cli.secret_input import with_passphrases
from app.home import home_path, make_home, store_path
from app.jobfile import read_job
from app.services import Services, known_hosts_of
from app.text import t, unmonitored
from app.web.audit import Audit
from backend.cluster.ssh.node import connect
from backend.job.problems import ProblemsError
from backend.runs import emergency_stop
from backend.runs.api import StoreError, nothing_left
from backend.runs.connections import Connections
from backend.runs.states import RunState

WITHIN_S = 120.0


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `stop`."""
    option = parser.add_argument
    option("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    option("--save", action="store_true", help=t(lang, "cli.stop.save.help"))
    option("--job", metavar="FILE", help=t(lang, "cli.stop.job.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Stop a run, and wait until every node has proved that no process of the run is left."""
    try:
        services = Services.open(make_home(home_path()))
    except StoreError as error:
        raise stop_without_database(args, lang, error) from error
    with closing(services):
        run = find_run(services, args.run_id)
        services.controller.stop(run, save=args.save)
        state = services.controller.wait(run, WITHIN_S)
        snapshot = services.controller.snapshot(run)
        if state is RunState.UNWATCHED or (state.is_final and not snapshot.nodes):
            print(t(lang, "cli.ended", run=run, state=state_words(lang, state)))
            return DONE
        proved = sum(nothing_left(node.stop, node.exit) for node in snapshot.nodes)
        if not state.is_final or proved < len(snapshot.nodes):
            print(t(lang, "cli.stop.open", run=run))
            for line in unmonitored.lines(snapshot, lang):
                print(line)
            return FAILED
        values = {"run": run, "state": state_words(lang, state), "proved": proved, "nodes": len(snapshot.nodes)}
        print(t(lang, "cli.stopped", **values))
        return DONE


def stop_without_database(args: argparse.Namespace, lang: str, error: StoreError) -> ProblemsError:
    """Stop the run directly on its nodes. Returns the error to raise: what was done, and that it was not recorded."""
    home = home_path()
    job_given = read_job(args.job, home)[0] if args.job else None
    run, job = emergency_stop.find_run(store_path(home), args.run_id, job_given, error)
    known_hosts = known_hosts_of(home)
    connections = Connections(lambda host: connect(host, known_hosts))
    audit = Audit(home)
    audit.record("stop", run=run, save=args.save)

    def stop() -> ProblemsError:
        return emergency_stop.stop(run, job, connections, save=args.save, why=error)

    try:
        # A full disk refuses to record unlock_key, but not stop.
        return with_passphrases(lang, audit, stop, "stop")
    finally:
        connections.close()

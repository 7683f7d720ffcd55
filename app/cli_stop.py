"""`megaboard stop` where the database cannot even be opened: the nodes are told all the same."""

import argparse
from pathlib import Path

from app.audit import Audit
from app.cli_secrets import unlocked
from app.home import home_path
from app.jobfile import read_job
from backend.cluster.hostkeys import KnownHosts
from backend.cluster.ssh import connect
from backend.job.problems import ProblemsError
from backend.jobs import unopened
from backend.jobs.connections import Connections
from backend.jobs.lead import Timing
from backend.jobs.store import StoreError


def stop_unopened(chosen: argparse.Namespace, lang: str, why: StoreError) -> ProblemsError:
    """Stop the run that is meant, and answer what to raise: what was done and could not be recorded."""
    home = home_path()
    given = read_job(chosen.job, home)[0] if chosen.job else None
    run, job = unopened.find_run(home / "megaboard.db", chosen.run_id, given, why)
    known_hosts = KnownHosts(home / "known_hosts", Path("~/.ssh/known_hosts").expanduser())
    connections = Connections(lambda host: connect(host, known_hosts))
    audit = Audit(home)
    audit.record("stop", run=run, save=chosen.save)

    def stop() -> ProblemsError:
        return unopened.stop(run, job, connections, save=chosen.save, grace_s=Timing().grace_s, why=why)

    try:
        # Not as unlock_key, which a full disk refuses to record.
        return unlocked(lang, audit, stop, "stop")
    finally:
        connections.close()

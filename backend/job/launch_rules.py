"""Rules for a job that is to be launched; planning does not need them."""

import re
from dataclasses import replace

from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.job_secrets import check_containers
from backend.job.problems import Problem


def check_launch(job: Job) -> list[Problem]:
    """Return the missing or contradictory values for a launch, by field."""
    values = {
        "model.path": job.model.path,
        "training.dataset": job.training.dataset,
        "training.dataset_dir": job.training.dataset_dir,
        "training.template": job.training.template if needs_template(job) else "not needed",
        "training.output_dir": job.training.output_dir,
    }
    problems = [Problem(code="needed_for_launch", field=path) for path, value in values.items() if not value]
    return problems + check_machines(job)


def needs_template(job: Job) -> bool:
    """Return whether the job needs a template. Pre-training and ms-swift do not."""
    return job.training.stage != "pt" and job.traits.environment != "swift"


def check_nodes(job: Job) -> list[Problem]:
    """Return the missing, contradictory or secret values for starting anything on the nodes.

    Of these, check_launch leaves the secrets to the check of the engine, which the wizard shows on every step.
    """
    return check_machines(job) + check_containers(job.cluster)


def check_machines(job: Job) -> list[Problem]:
    """Return the missing or contradictory values of the nodes, their ports and the installation."""
    return _check_hosts(job) + _check_ports(job) + _check_install(job)


def environment_of(job: Job, rank: int) -> Environment | None:
    """Return the environment of node `rank` for the job's engine: its own, or the cluster's.

    Its container, if it has one, has the job's folders as mounts.
    """
    name = job.traits.environment
    own = {} if job.cluster.scheduler else job.cluster.hosts[rank].environments
    environment = own.get(name) or job.cluster.environments.get(name)
    if environment is None or environment.container is None:
        return environment
    return replace(environment, container=replace(environment.container, mounts=job_folders(job)))


def with_spares(job: Job) -> Job:
    """Return the job with its spares after its hosts. `cluster.nodes` stays: ranks from there on are spares."""
    cluster = job.cluster
    return replace(job, cluster=replace(cluster, hosts=(*cluster.hosts, *cluster.spares), spares=()))


def on_login_node(job: Job) -> Job:
    """Return the job of the login node alone. What it does there, all nodes see: they share its disk.

    Without a scheduler, return the job itself.
    """
    scheduler = job.cluster.scheduler
    if scheduler is None:
        return job
    cluster = replace(job.cluster, nodes=1, hosts=(scheduler.login.host,), scheduler=None)
    return replace(job, cluster=cluster)


def own_field(job: Job, field: str) -> str:
    """Return a path in `with_spares(job)` or `on_login_node(job)` as the path in `job` that a user can change."""
    host = re.match(r"cluster\.hosts\[(\d+)\](.*)", field)
    if host is None:
        return field
    if job.cluster.scheduler is not None:
        return f"cluster.scheduler.login{host[2]}"
    spare = int(host[1]) - len(job.cluster.hosts)
    return field if spare < 0 else f"cluster.spares[{spare}]{host[2]}"


def job_folders(job: Job) -> tuple[str, ...]:
    """Return the folders of the nodes that the job names."""
    paths = (job.cluster.run_root, job.model.path, job.training.dataset_dir, job.training.output_dir)
    return tuple(path for path in paths if path)


def _check_hosts(job: Job) -> list[Problem]:
    hosts = job.cluster.hosts
    if job.cluster.scheduler is not None:
        return _check_scheduler(job)
    if len(hosts) != job.cluster.nodes:
        values = {"hosts": len(hosts), "nodes": job.cluster.nodes}
        edit = {"cluster.nodes": len(hosts)} if hosts else {}
        return [Problem(code="hosts_not_nodes", field="cluster.hosts", values=values, edit=edit)]
    problems = []
    rank_of_host: dict[tuple[str, int], int] = {}
    for rank, host in enumerate(hosts):
        first_rank = rank_of_host.setdefault((host.address, host.port), rank)
        if first_rank != rank:
            twice = {"address": host.address, "port": host.port, "first": first_rank}
            problems.append(Problem(code="host_twice", field=f"cluster.hosts[{rank}].address", values=twice))
        if environment_of(job, rank) is None:
            field = f"cluster.environments.{job.traits.environment}.python"
            return [*problems, Problem(code="no_environment", field=field, values={"name": job.traits.environment})]
    for number, host in enumerate(job.cluster.spares):
        first_rank = rank_of_host.setdefault((host.address, host.port), len(hosts) + number)
        if first_rank != len(hosts) + number:
            twice = {"address": host.address, "port": host.port, "first": first_rank}
            problems.append(Problem(code="host_twice", field=f"cluster.spares[{number}].address", values=twice))
    return problems


def _check_scheduler(job: Job) -> list[Problem]:
    problems = []
    for field, hosts in (("cluster.hosts", job.cluster.hosts), ("cluster.spares", job.cluster.spares)):
        if hosts:
            problems.append(Problem(code="hosts_beside_scheduler", field=field, edit={field: ()}))
    environment, field = environment_of(job, 0), f"cluster.environments.{job.traits.environment}"
    if environment is None:
        problems.append(
            Problem(code="no_environment", field=f"{field}.python", values={"name": job.traits.environment})
        )
    elif environment.container is not None:
        problems.append(Problem(code="container_beside_scheduler", field=f"{field}.container.image"))
    return problems


def _check_ports(job: Job) -> list[Problem]:
    ports = job.cluster.port_range
    if len(ports) == 2 and ports[0] <= ports[1]:
        return []
    return [Problem(code="bad_port_range", field="cluster.port_range")]


def _check_install(job: Job) -> list[Problem]:
    """Refuse a password in the address of the index: a job file carries no secret. The value is not repeated."""
    address = job.cluster.install.index_url or ""
    problems = []
    if "@" in address.partition("://")[2].partition("/")[0]:
        problems.append(Problem(code="index_has_password", field="cluster.install.index_url"))
    if job.cluster.install.offline and not job.cluster.install.find_links:
        problems.append(Problem(code="offline_without_wheels", field="cluster.install.find_links"))
    return problems

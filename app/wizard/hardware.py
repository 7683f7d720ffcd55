"""Step 1: the machines of a plan, and how a launch connects to them."""

from collections.abc import Mapping
from typing import Any

from app.home import cluster_names
from app.own_presets import own_presets
from app.services import Services
from app.text.reference import ENVIRONMENTS, GPU_FIGURES
from app.wizard.draft_state import DraftState
from app.wizard.fields import Form
from app.wizard.layout import grid, more, place, section
from app.wizard.scheduler import KIND as SCHEDULER_KIND
from app.wizard.speed import card
from app.wizard.start import recipe_list
from backend.job.cluster import Cluster, Host
from backend.job.presets import clusters, gpus

STEP = "hardware"
_HOSTS_PLACEHOLDER = "train@10.0.0.1\ntrain@10.0.0.2:2222 fabric=192.168.0.2"


def build(form: Form) -> None:
    """Build the step's widgets."""
    form.start(STEP)
    with section(form.lang, "start"):
        place("start")
    with section(form.lang, "machines"):
        place("clusters")
        place("own_clusters")
        with grid():
            form.fields("cluster.gpu", "cluster.nodes", "cluster.gpus_per_node")
            form.fields(*(f"cluster.gpu.{name}" for name in GPU_FIGURES))
            form.fields("cluster.intra_node_gb_per_s", "cluster.inter_node_gbit_per_s", "cluster.nics_per_node")
            form.fields("cluster.host_memory_gib", "cluster.stack")
    with section(form.lang, "access"):
        form.field(SCHEDULER_KIND)
        form.field("cluster.hosts.lines", lines=4, placeholder=_HOSTS_PLACEHOLDER)
        with grid():
            form.field("cluster.scheduler.login.address", placeholder="login.cluster")
            form.fields("cluster.scheduler.login.user", "cluster.scheduler.login.identity_file")
            form.fields(*(f"cluster.scheduler.{name}" for name in ("partition", "account", "qos")))
            form.field("cluster.scheduler.time_limit", placeholder="1-00:00:00")
            form.fields("cluster.scheduler.constraint", "cluster.scheduler.container")
            form.fields("cluster.hosts.user", "cluster.hosts.identity_file")
            for name in ENVIRONMENTS:
                form.field(f"cluster.environments.{name}.python", placeholder="/opt/train/bin/python")
        place("hosts")
        place("fetch_memory")
        with more(form.lang, "access.more"), grid():
            for path in ("cluster.hosts.proxy_jump", "cluster.scheduler.login.proxy_jump"):
                form.field(path, placeholder="user@gateway:22")
            for name in ("login.port", "exclusive", "cpus_per_node", "signal_s"):
                form.field(f"cluster.scheduler.{name}")
            form.fields(*(f"cluster.environments.{name}.setup" for name in ENVIRONMENTS))
            for name in ENVIRONMENTS:
                form.field(f"cluster.environments.{name}.container.image", placeholder="registry.example.com/train:1")
                form.field(f"cluster.environments.{name}.container.runtime")
            form.fields("cluster.run_root", "cluster.port_range", "cluster.outside_gib")
    with section(form.lang, "calibration"):
        place("calibration")
        place("fetch_speed")


def cluster_edits(key: str) -> dict[str, Any]:
    """Return the edits of the draft for a cluster preset."""
    return {f"cluster.{name}": value for name, value in clusters()[key]["cluster"].items()}


def data(state: DraftState, form: Form, services: Services) -> dict[str, Any]:
    """Return the data of the step: presets, named clusters, parsed hosts and calibration."""
    job = state.job
    current = job.cluster if job else None
    chips = [_chip(key, preset["cluster"], current) for key, preset in clusters().items()]
    hosts = [_node(host) for host in job.cluster.hosts] if job else []
    return {
        "recipes": recipe_list(form.lang, services.demo),
        "presets": own_presets(services.home),
        "clusters": chips,
        "own_clusters": own_clusters(services),
        "hosts": hosts,
        "scheduler": state.scheduler,
        "calibration": card(state, form.lang, services),
    }


def own_clusters(services: Services) -> list[dict[str, Any]]:
    """Return the named clusters. `on` marks the one that the draft uses."""
    chosen = services.draft.job_mapping().get("cluster")
    return [{"name": name, "on": name == chosen} for name in cluster_names(services.home)]


def _chip(key: str, preset: Mapping[str, Any], current: Cluster | None) -> dict[str, Any]:
    """Return a preset as a button, such as `4 x 8 H100 80 GB SXM`. `on` if the draft has the same values."""
    is_on = current is not None and all(getattr(current, name) == value for name, value in preset.items())
    name = f"{preset['nodes']} × {preset['gpus_per_node']} {gpus()[preset['gpu']].name}"
    return {"key": key, "name": name, "on": is_on}


def _node(host: Host) -> Mapping[str, Any]:
    return {"user": host.user, "address": host.address, "port": host.port, "key": host.identity_file,
            "fabric": host.dialled_address, "jump": host.proxy_jump}  # fmt: skip

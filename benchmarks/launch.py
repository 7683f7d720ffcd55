"""Cost of a launch for the server: connect to 4, 32 and 128 SSH servers, write 3 files and start a process on each.

    python -m benchmarks.launch [--nodes 4 32 128] [--rounds 3] [--parallel-ssh PYTHON]

Two others do the same work in the same run:

- parallel OpenSSH: one ssh process per node, with the files as a tar on its input, which is its cheapest way;
- parallel-ssh, if PYTHON is an interpreter that has it.

Each works on 16 nodes at once, in its own process that has already loaded its code. The table shows the median of the
rounds. CPU is the client's, children included. Memory is its peak (PSS), and the part that came during the work. The
CPU of the SSH servers is shown beside it: they share the machine.

The work differs in two points. Megaboard and OpenSSH check the host key, parallel-ssh does not. Megaboard and
parallel-ssh keep the connections, which a launch needs.
"""

import argparse
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

AT_ONCE = 16
TARGET = 1.3
"""Target of the ratio of our CPU and wall time to those of the faster of the other two."""
FILES = {"supervisor.py": 24_000, "config.yaml": 2_000}
START = 'cd "$(dirname "$0")" && { setsid sleep 2 < /dev/null > /dev/null 2>&1 & echo $! > pid; }\n'
SAMPLE_S = 0.05
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 32, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel-ssh", metavar="PYTHON", help="an interpreter that has parallel-ssh")
    parser.add_argument("--contender", nargs=2, metavar=("NAME", "SPEC"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        contend(*options.contender)
        return
    pythons = {"Megaboard": sys.executable, "OpenSSH": sys.executable}
    if options.parallel_ssh:
        pythons["parallel-ssh"] = options.parallel_ssh
    elif importlib.util.find_spec("pssh"):
        pythons["parallel-ssh"] = sys.executable
    else:
        print("parallel-ssh: left out, it is not installed here; --parallel-ssh names an interpreter that has it")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; median of {options.rounds} rounds")
    print(
        f"{'nodes':>5} {'by':14}{'wall s':>8}{'CPU s':>8}{'servers s':>11}{'peak MiB':>10}{'of it +':>9}{'threads':>9}"
    )
    for nodes in options.nodes:
        show(nodes, measure(nodes, options.rounds, pythons))


def show(nodes: int, rounds: dict[str, list[dict[str, float]]]) -> None:
    """Print a row for each client, and the ratio of our figures to those of the faster of the other two."""
    rows = {name: {key: statistics.median(figures[key] for figures in costs) for key in costs[0]}
            for name, costs in rounds.items()}  # fmt: skip
    for name, row in rows.items():
        print(f"{nodes:5} {name:14}{row['wall_s']:8.2f}{row['cpu_s']:8.2f}{row['servers_s']:11.2f}"
              f"{row['peak_mib']:10.0f}{row['grown_mib']:9.0f}{row['threads']:9.0f}")  # fmt: skip
    for key, words in (("wall_s", "wall"), ("cpu_s", "CPU")):
        best = min(row[key] for name, row in rows.items() if name != "Megaboard")
        ratio = rows["Megaboard"][key] / best
        print(
            f"      {words}: {ratio:.2f} x the faster other, target {TARGET}: {'met' if ratio <= TARGET else 'missed'}"
        )


def measure(nodes: int, rounds: int, pythons: dict[str, str]) -> dict[str, list[dict[str, float]]]:
    """Run every client in turn, `rounds` times, against the same servers."""
    from app.demo.local_nodes import LocalNodes

    costs: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalNodes(Path(folder) / "nodes", nodes=nodes)
        hosts = cluster.start()
        try:
            for number in range(rounds):
                for name, python in pythons.items():
                    work = Path(folder) / f"{name}-{number}"
                    spec = {
                        "hosts": [[host.address, host.port, host.user] for host in hosts],
                        "key": str(cluster.identity_file),
                        "known_hosts": str(cluster.folder / "known_hosts"),
                        "work": str(work),
                        "local": str(work / "local"),
                    }
                    before = servers_cpu_s(cluster)
                    result = run_contender(name, python, spec)
                    result["servers_s"] = servers_cpu_s(cluster) - before
                    costs[name].append(result)
                    check(spec)
        finally:
            assert cluster.stop() == []
    return costs


def run_contender(name: str, python: str, spec: dict[str, Any]) -> dict[str, float]:
    """Start a client, let it begin when it has loaded its code, and sample its memory and threads."""
    local = Path(spec["local"])
    local.mkdir(parents=True)
    for file, size in FILES.items():
        (local / file).write_bytes(os.urandom(size))
    (local / "start.sh").write_text(START)
    path = local.parent / "spec.json"
    path.write_text(json.dumps(spec))
    process = subprocess.Popen(
        [python, __file__, "--contender", name, path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "SSH_AUTH_SOCK": ""},
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "ready\n", name
    loaded = peak = tree_mib(process.pid)
    threads = 0
    process.stdin.write("go\n")
    process.stdin.flush()
    with ThreadPoolExecutor(1) as reader:
        cost = reader.submit(process.stdout.readline)
        while not cost.done():
            peak, threads = max(peak, tree_mib(process.pid)), max(threads, tree_threads(process.pid))
            time.sleep(SAMPLE_S)
    process.stdin.close()
    assert process.wait() == 0
    return {**json.loads(cost.result()), "peak_mib": peak, "grown_mib": peak - loaded, "threads": threads}


def contend(name: str, spec_path: str) -> None:
    """Run in the client's process: load the code, report ready, wait for the start, work, and report the cost."""
    spec = json.loads(Path(spec_path).read_text())
    work = {"Megaboard": by_megaboard, "OpenSSH": by_openssh, "parallel-ssh": by_parallel_ssh}[name](spec)
    print("ready", flush=True)
    sys.stdin.readline()
    wall, cpu = time.perf_counter(), cpu_s()
    work()
    print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": cpu_s() - cpu}), flush=True)
    sys.stdin.readline()
    os._exit(0)  # A normal exit would close 128 connections, one after another.


def by_megaboard(spec: dict[str, Any]) -> Any:
    """Work as a launch does: a thread pool, one kept connection per node, one write of all files, the supervisor."""
    from backend.cluster.node_group import POOL, on_all
    from backend.cluster.ssh.host_keys import KnownHosts
    from backend.cluster.ssh.node import SshNode, connect
    from backend.job.cluster import Host

    assert POOL == AT_ONCE
    known_hosts = KnownHosts(Path(spec["work"]) / "app_known_hosts", Path(spec["known_hosts"]))
    hosts = [Host(address=address, port=port, user=user, identity_file=spec["key"])
             for address, port, user in spec["hosts"]]  # fmt: skip
    files = {path.name: path.read_bytes() for path in Path(spec["local"]).iterdir()}

    def launch(rank: int, host: Host) -> SshNode:
        node, folder = connect(host, known_hosts), f"{spec['work']}/node{rank}"
        node.fill_folder(folder, files)
        assert node.run(["sh", f"{folder}/start.sh"], timeout_s=30).code == 0
        return node

    return lambda: on_all(hosts, launch, 600)


def by_openssh(spec: dict[str, Any]) -> Any:
    """Work with one ssh process per node."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in Path(spec["local"]).iterdir():
            tar.add(path, path.name)
    options = ["-F", "none", "-i", spec["key"], "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes",
               "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={spec['known_hosts']}"]  # fmt: skip

    def launch(item: tuple[int, list[Any]]) -> None:
        rank, (address, port, user) = item
        folder = f"{spec['work']}/node{rank}"
        command = f"mkdir -p {folder} && tar -C {folder} -xf - && sh {folder}/start.sh"
        ssh = ["ssh", *options, "-p", str(port), f"{user}@{address}", command]
        for _ in range(3):  # A server may drop connections that arrive at the same time.
            if subprocess.run(ssh, input=packed.getvalue(), stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return
        raise AssertionError(f"ssh to node {rank} failed")

    def work() -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(launch, enumerate(spec["hosts"])))

    return work


def by_parallel_ssh(spec: dict[str, Any]) -> Any:
    """Work with the parallel client: copy_file for each file, then run_command."""
    from gevent import joinall
    from pssh.clients import ParallelSSHClient
    from pssh.config import HostConfig

    names = [path.name for path in Path(spec["local"]).iterdir()]
    numbers = range(len(spec["hosts"]))
    addresses = [address for address, _, _ in spec["hosts"]]
    config = [HostConfig(port=port, user=user, private_key=spec["key"]) for _, port, user in spec["hosts"]]

    def work() -> None:
        client = ParallelSSHClient(addresses, host_config=config, pool_size=AT_ONCE, num_retries=3, allow_agent=False)
        for name in names:
            copies = [
                {"local": f"{spec['local']}/{name}", "remote": f"{spec['work']}/node{rank}/{name}"} for rank in numbers
            ]
            joinall(client.copy_file("%(local)s", "%(remote)s", copy_args=copies), raise_error=True)
        scripts = [f"{spec['work']}/node{rank}/start.sh" for rank in numbers]
        output = client.run_command("sh %s", host_args=scripts)
        client.join(output)
        assert {host.exit_code for host in output} == {0}

    return work


def check(spec: dict[str, Any]) -> None:
    """Check that every node has the files unchanged and has started its process."""
    for rank in range(len(spec["hosts"])):
        folder = Path(spec["work"]) / f"node{rank}"
        for path in Path(spec["local"]).iterdir():
            assert (folder / path.name).read_bytes() == path.read_bytes()
        assert int((folder / "pid").read_text()) > 1


def cpu_s() -> float:
    """Return the CPU seconds of this process and its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def servers_cpu_s(cluster: Any) -> float:
    """Return the CPU seconds of the sshd processes and of their ended sessions."""
    from app.demo.local_nodes import _process_tree
    from backend.node.supervisor.processes import read_process, read_stat

    listeners = [read_process(node["pid"]) for node in json.loads((cluster.folder / "nodes.json").read_text()).values()]
    processes = [process for listener in listeners if listener for process in _process_tree(listener)]
    return sum(int(value) for process in processes for value in read_stat(process.pid)[1][11:15]) * TICK_S


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    processes = [pid]
    for process in processes:
        try:
            for task in Path(f"/proc/{process}/task").iterdir():
                processes += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return processes


def tree_mib(pid: int) -> float:
    """Return the memory of a process and its children. Shared pages count once."""
    total = 0
    for process in tree(pid):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def tree_threads(pid: int) -> int:
    """Return the threads of a process and its children."""
    total = 0
    for process in tree(pid):
        try:
            total += len(list(Path(f"/proc/{process}/task").iterdir()))
        except OSError:
            continue
    return total


if __name__ == "__main__":
    main()

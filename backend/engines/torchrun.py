"""The command that starts one node of a run."""

from backend.engines.placement import NodePlacement, Placement

ENTRY = "entry.py"


def torchrun_command(placement: Placement, node: NodePlacement, *, ranks: int, program: str = ENTRY) -> tuple[str, ...]:
    """Return a torchrun command with static rendezvous, whose agents do not restart ranks.

    Node ranks follow the host order. `ranks` is the number of processes on this node. Each runs the entry script of the
    run folder, or another `program` there.
    """
    return (
        *(node.python, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(placement.nodes))),
        *("--node_rank", str(node.rank)),
        *("--nproc_per_node", str(ranks)),
        *("--master_addr", placement.master_address),
        *("--master_port", str(placement.master_port)),
        *("--max_restarts", "0"),
        f"{node.folder}/{program}",
        node.folder,
    )

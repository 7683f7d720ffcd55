"""Everything that runs on a node.

cluster/node_programs.py joins the modules of a program into one file. The server writes the file into the run folder,
or sends it to a Python of the node on its standard input.

    supervisor/         starts, watches and stops one node's part of a run
    training/           runs in the engine's process, or prepares its data and exports its model
    checks/, samples/   answer one request of the server as `T{json}` and leave nothing behind
    copier/             copies model and data from node 0 to the other nodes
    benchmark.py        measures GEMMs and the network, with one process per rank
    fallback_stop.sh    stops a run on a node whose Python does not run

The package may import itself and the standard library of Python 3.8. A function that runs in the engine's environment
may import the engine's packages. tests/node/test_wall.py checks the imports, and ruff checks the syntax for Python 3.8.
"""

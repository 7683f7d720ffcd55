"""Entry point of the copier. It serves files on node 0 and copies them on the other nodes."""

from __future__ import annotations

import json
import os
import sys

from .destination import CopyError
from .give import give
from .take import Taker, write_json


def main() -> None:
    folder, role = os.path.abspath(sys.argv[1]), sys.argv[2]
    with open(f"{folder}/copy.json") as file:
        request = json.load(file)
    # The token must not stay on a disk.
    os.unlink(f"{folder}/copy.json")
    for root in request["roots"]:
        root["root"] = os.path.abspath(os.path.expanduser(root["root"]))
    if role == "give":
        give(request)
    try:
        Taker(folder, request).take()
    except CopyError as error:
        write_json(f"{folder}/result.json", error.answer)
        sys.exit(f"megaboard: {error}")


if __name__ == "__main__":
    main()

"""Entry point of the installer."""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import Any

from .build import Build
from .folder import InstallError, need_and_room, reserve_record, write_record
from .interpreters import read_tools

FULL = (errno.ENOSPC, errno.EDQUOT)


def main() -> None:
    action, argument = sys.argv[1], sys.argv[2]
    if action == "tools":
        print(sys.argv[4] + json.dumps(read_tools(json.loads(argument))), flush=True)
        return
    folder = os.path.abspath(argument)
    with open(f"{folder}/install.json") as file:
        request = json.load(file)
    reserve_record(f"{folder}/result.json")
    try:
        Build(folder, request).run()
    except InstallError as error:
        fail(folder, request, error.answer)
    except OSError as error:
        code = "install_disk_full" if error.errno in FULL else "install_command_failed"
        fail(folder, request, {"code": code, "path": request["root"], "lines": str(error)})


def fail(folder: str, request: dict[str, Any], answer: dict[str, Any]) -> None:
    """Write why the installation failed, and exit."""
    if answer["code"] == "install_disk_full":
        answer.update(need_and_room(os.path.expanduser(request["root"]), request["needed_bytes"]))
    write_record(f"{folder}/result.json", answer)
    sys.exit(f"megaboard: {answer}")


if __name__ == "__main__":
    main()

"""Entry point of the installer."""

from __future__ import annotations

import json
import os
import sys

from .build import Build
from .folder import InstallError, write_record
from .interpreters import read_tools


def main() -> None:
    action, argument = sys.argv[1], sys.argv[2]
    if action == "tools":
        print(sys.argv[4] + json.dumps(read_tools(json.loads(argument))), flush=True)
        return
    folder = os.path.abspath(argument)
    with open(f"{folder}/install.json") as file:
        request = json.load(file)
    try:
        Build(folder, request).run()
    except InstallError as error:
        write_record(f"{folder}/result.json", error.answer)
        sys.exit(f"megaboard: {error}")
    except OSError as error:
        code = "install_disk_full" if error.errno == 28 else "install_command_failed"
        answer = {"code": code, "path": request["root"], "lines": str(error)}
        write_record(f"{folder}/result.json", answer)
        sys.exit(f"megaboard: {error}")


if __name__ == "__main__":
    main()

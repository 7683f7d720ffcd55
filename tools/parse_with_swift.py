"""Run ms-swift's own argument classes over many configurations in one process, because their import is slow.

The python of ms-swift runs this file without arguments. stdin: JSON, case -> {files, environment} as rendered.
stdout, last line: JSON, case -> {error, arguments}. Without Transformer Engine, empty classes stand for its names.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def parse(program, files, environment):
    before = dict(os.environ)
    os.environ.update({name: text for name, text in environment.items() if not name.endswith("_SOCKET_IFNAME")})
    if environment["MEGABOARD_TRAINER"].startswith("swift_trainer"):
        # transformers refuses 16 bits on a machine without GPUs.
        files = {**files, "config.yaml": files["config.yaml"] + "use_cpu: true\n"}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        os.chdir(folder)
        try:
            arguments = program.parse_swift()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            os.chdir("/")
            os.environ.clear()
            os.environ.update(before)
    plain = {key: value for key, value in vars(arguments).items() if isinstance(value, bool | int | float | str | list)}
    return {"error": None, "arguments": plain}


def main():
    sys.path.insert(0, str(HERE))
    import swift_without_gpu

    swift_without_gpu.install()
    # Last, because modules of ms-swift's environment come first.
    sys.path.append(str(HERE.parent))
    from backend.node.checks import engine_args

    engine_args.set_one_rank()
    cases = json.load(sys.stdin)
    # The first one selects what is imported.
    first = next(iter(cases.values()))["environment"]
    os.environ.update({name: text for name, text in first.items() if not name.endswith("_SOCKET_IFNAME")})
    results = {case: parse(engine_args, **rendered) for case, rendered in cases.items()}
    print("\n" + json.dumps(results, default=str))


if __name__ == "__main__":
    main()

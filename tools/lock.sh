#!/bin/sh
# lock.sh: writes the lock files in requirements/ again. They list every package with its version and the hashes of its
# files. It makes page.txt (what the page needs) and dev.txt (the same, and the tools of its tests) from pyproject.toml,
# and X.txt from each X.in. The versions in X.in are chosen by hand. The sets of GPU nodes (environments/X.in) get all
# their dependencies, for Linux and Python 3.11.
set -eu
cd "$(dirname "$0")/.."
# Versions that are in a lock file stay, unless the script is called with --upgrade.
compile() {
    .venv/bin/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
        --custom-compile-command "make lock" "$@"
}
lock() { compile --universal "$@"; }
lock pyproject.toml --output-file requirements/page.txt "$@"
lock pyproject.toml --group dev --constraints requirements/page.txt --output-file requirements/dev.txt "$@"
for input in requirements/*.in; do
    lock --no-deps "$input" --output-file "${input%.in}.txt"
done
for input in requirements/environments/*.in; do
    compile --python-platform x86_64-unknown-linux-gnu "$input" --output-file "${input%.in}.txt" "$@"
done

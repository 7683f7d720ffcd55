#!/bin/sh
# python.sh: prints the Python to build with: $PYTHON, or the first of 3.11, 3.12, 3.13 that can make a virtual environment.
set -eu
for python in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
if [ -n "${PYTHON:-}" ]; then
    echo "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13 with the modules venv and ensurepip." >&2
else
    echo "Found no Python 3.11, 3.12 or 3.13 with the modules venv and ensurepip (make PYTHON=... names another one)." >&2
    echo "Debian, Ubuntu: apt-get install python3-venv" >&2
fi
exit 1

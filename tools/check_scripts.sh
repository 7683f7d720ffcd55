#!/bin/sh
# check_scripts.sh: lints, type-checks and unit-tests the page's scripts. Without npm it skips them, unless CI=true.
set -eu
cd "$(dirname "$0")/.."
if ! command -v npm >/dev/null; then
    echo "Skipped: the page's scripts are not checked, because npm is not installed (Debian: apt-get install npm)." >&2
    [ "${CI:-}" != true ]
    exit
fi
if [ ! -e node_modules/.ready ] || [ package-lock.json -nt node_modules/.ready ]; then
    npm ci --no-audit --no-fund --loglevel=error
    touch node_modules/.ready
fi
npm run --silent lint
npm test --silent

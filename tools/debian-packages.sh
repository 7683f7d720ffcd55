#!/bin/sh
# debian-packages.sh demo|test: sees to the programs that no Python package brings.
# Installs only as root with CI=true or MEGABOARD_APT=1. Otherwise prints the command to run, and then the demo,
# which cannot do without, stops (exit 1) while the tests go on: those that need a program skip and say so.
set -eu
purpose=$1
PATH=$PATH:/usr/sbin:/sbin
missing=""
need() { command -v "$1" >/dev/null || missing="$missing $2"; }

[ -n "${PYTHON:-}" ] || "$(dirname "$0")/python.sh" >/dev/null 2>&1 || missing="$missing python3-venv"
need sshd openssh-server
if [ "$purpose" = test ]; then
    browser=chromium
    grep -q '^ID=ubuntu' /etc/os-release 2>/dev/null && browser=chromium-browser
    command -v chromium-browser >/dev/null || need chromium "$browser"
    need ip iproute2
    need slurmctld slurmctld # a real Slurm cluster in namespaces
    need slurmd slurmd
    need sbatch slurm-client
    need dockerd docker.io # containers of engines
    need docker-registry docker-registry
    need npm npm # checks the page's scripts
    need g++ g++ # DeepSpeed builds parts of itself
    fc-list :lang=zh 2>/dev/null | grep -q . || missing="$missing fonts-noto-cjk"
fi
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && { [ "${CI:-}" = true ] || [ "${MEGABOARD_APT:-}" = 1 ]; }; then
    # shellcheck disable=SC2086  # a list of package names
    if apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; then
        exit 0
    fi </dev/null
    echo "apt-get could not install:$missing" >&2
else
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo "
    echo "Missing Debian packages. Install them with:" >&2
    echo "    ${sudo}apt-get install -y --no-install-recommends$missing" >&2
fi
[ "$purpose" = test ]

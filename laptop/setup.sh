#!/usr/bin/env bash
# Makes .venv in the checkout with everything locked in requirements/, and fetches the jars. Called by `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Packages are only installed where that needs no question: Debian or Ubuntu, as root.
apt_install() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] || { [ -n "${CI:-}" ] && sudo -n true 2>/dev/null; } || return 1
    echo "Installing $* …"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

if ! python=$(find_python); then
    echo "Weir needs Python 3.11 or newer, and none is on PATH: install it, or name it with PYTHON=/path/to/python3." >&2
    exit 1
fi

if ! message=$("$python" -m laptop.java 2>&1); then
    # Debian 13 has no 17 any more, older ones have no 21.
    apt_install openjdk-17-jre-headless || apt_install openjdk-21-jre-headless || true
    "$python" -m laptop.java || exit 1
fi

if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Making $venv with $("$python" --version) …"
    rm -rf "$venv"
    if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
        rm -rf "$venv"
        package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
        if ! apt_install "$package" || ! "$python" -m venv "$venv"; then
            echo "$python cannot make a virtual environment: install its venv module (Debian or Ubuntu: $package)." >&2
            exit 1
        fi
    fi
fi

echo "Installing the Python packages of requirements/dev.txt …"
"$venv/bin/python" requirements/install.py requirements/dev.txt
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
"$venv/bin/python" -m laptop.jars
echo "Archiving Java's classes, so that everything starts faster …"
"$venv/bin/python" -m laptop.class_archive
"$venv/bin/python" -m laptop.server_archives

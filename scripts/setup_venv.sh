#!/bin/sh
# Creates .venv and installs the package with its extras and the dev group into it, with uv or else pip. An argument
# names one more group; `demo` creates .venv-demo instead, with what the
# demonstrations and the dashboard need. An existing environment is kept and
# completed. PYTHON names the interpreter (default: the first suitable one).
set -eu
cd "$(dirname "$0")/.."

has_uv() { uv --version >/dev/null 2>&1; }

suits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for python in ${PYTHON:-python3 python3.15 python3.14 python3.13 python3.12 python3.11}; do
        if suits "$python"; then echo "$python" && return; fi
    done
}

ensure_pip() {
    if "$1" -c 'import ensurepip' 2>/dev/null; then return; fi
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "$1 has no ensurepip: install the package python3-venv, or uv." >&2
        return 1
    fi
    echo "installing python3-venv"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
}

make_venv() {
    python=$(find_python)
    if has_uv; then
        uv venv --quiet --seed --allow-existing --python "${python:->=3.11}" "$venv"
    elif [ -n "$python" ]; then
        ensure_pip "$python"
        "$python" -m venv "$venv"
    else
        echo "perdure needs Python 3.11 or later: install python3 and python3-venv, or set PYTHON." >&2
        return 1
    fi
}

# uv is larger than everything a demonstration needs: there it is used only if it is installed.
ensure_uv() {
    if has_uv || [ "$venv" = .venv-demo ]; then return; fi
    PATH=$PWD/$venv/bin:$PATH
    has_uv || "$venv/bin/python" -m pip install --quiet uv || true
}

# uv does not read pip's configuration, which may name the only index this machine can reach: so pip is the fallback.
# Bytecode is compiled here, as pip does: hundreds of processes of the tests import these packages.
install() {
    ensure_uv
    if has_uv; then
        if uv pip install --quiet --compile-bytecode --python "$venv/bin/python" "$@"; then return; fi
        echo "uv could not install the packages, trying pip" >&2
    fi
    if [ "$venv" = .venv ]; then "$venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1'; fi # knows --group
    "$venv/bin/python" -m pip install --quiet "$@"
}

venv=.venv
if [ "${1-}" = demo ]; then venv=.venv-demo; fi
suits "$venv/bin/python" || make_venv
if [ "$venv" = .venv-demo ]; then
    install --editable '.[cli,dashboard]'
else
    install --editable '.[all]' --group dev ${1:+--group "$1"}
    # Edda needs version 1 of this SDK; the HTTP API is tested with the current version as well.
    if [ ! -d "$venv/cloudevents-2/cloudevents" ]; then install --target "$venv/cloudevents-2" 'cloudevents>=2'; fi
fi

#!/bin/sh
# Makes .venv with everything that tests need, checks for Java 17 or newer and a Chromium. With the
# argument "demo" it installs what the demo needs, and no more. Safe to repeat: does nothing while
# pyproject.toml is unchanged.
set -eu
cd "$(dirname "$0")/.."
extra=${1:-dev}

find_python() {
    for name in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        [ -n "$name" ] || continue
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "setup: Python 3.11 or newer is needed; install it or set PYTHON=/path/to/python" >&2
    exit 1
}

java_major() {
    command -v "${JAVA_HOME:+$JAVA_HOME/bin/}java" >/dev/null 2>&1 || { echo 0; return; }
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 |
        sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

check_java() {
    major=$(java_major)
    [ "${major:-0}" -ge 17 ] && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "setup: installing a Java 17 runtime with apt-get" >&2
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
            openjdk-17-jre-headless >/dev/null || true
    elif [ "$(id -u)" = 0 ] && command -v dnf >/dev/null 2>&1; then
        echo "setup: installing a Java 17 runtime with dnf" >&2
        dnf install -y -q java-17-openjdk-headless || true
    elif command -v brew >/dev/null 2>&1; then
        echo "setup: installing a Java 17 runtime with brew" >&2
        brew install -q openjdk@17 || true
    fi
    major=$(java_major)
    if [ "${major:-0}" -lt 17 ]; then
        echo "setup: Spark needs Java 17 or newer; run: sudo apt-get install openjdk-17-jre-headless (or your system's package) and set JAVA_HOME" >&2
        exit 1
    fi
}

make_venv() {
    python=$(find_python)
    if [ ! -x .venv/bin/python ]; then
        "$python" -m venv .venv 2>/dev/null || {
            # Debian's python3 comes without venv's pip
            rm -rf .venv
            "$python" -m pip install -q --user virtualenv && "$python" -m virtualenv -q .venv
        }
    fi
    file=$(cksum pyproject.toml)
    installed=$(cat .venv/.installed 2>/dev/null || true)
    # what tests need has all that the demo needs
    case "$installed" in "$extra $file" | "dev $file") return ;; esac
    echo "setup: installing the project and its extra '$extra' into .venv" >&2
    started=$(date +%s)
    .venv/bin/python -m pip install -q --disable-pip-version-check -e ".[$extra]"
    echo "setup: installed in $(($(date +%s) - started)) s" >&2
    echo "$extra $file" > .venv/.installed
}

# the reports are opened in a real browser by their tests, which say so if there is none
offer_chromium() {
    for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
        command -v "$name" >/dev/null 2>&1 && return
    done
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "setup: installing chromium with apt-get" >&2
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
            --no-install-recommends chromium fonts-dejavu-core >/dev/null || true
    elif [ "$(id -u)" = 0 ] && command -v dnf >/dev/null 2>&1; then
        echo "setup: installing chromium with dnf" >&2
        dnf install -y -q chromium || true
    else
        echo "setup: no Chromium found; the tests of HTML reports need one: sudo apt-get install chromium" >&2
    fi
}

check_java
[ "$extra" = demo ] || offer_chromium
make_venv

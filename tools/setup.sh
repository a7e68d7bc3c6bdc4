#!/usr/bin/env bash
# Make the environment: .venv with the pinned packages, and the Debian packages of the target.
# Usage: tools/setup.sh course|test. A second run only compares a stamp.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?usage: tools/setup.sh course|test}

say() { printf '%s\n' "$*" >&2; }

usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
    return 1
}

may_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    say "setup: installing $*"
    # shellcheck disable=SC2024
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

missing_packages() {
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
    done
}

system_packages() {
    local wanted=(libvulkan1 mesa-vulkan-drivers vulkan-validationlayers g++) missing
    [ "$kind" = course ] || wanted+=(chromium fonts-dejavu-core)
    if ! command -v dpkg-query >/dev/null; then
        say "setup: not a Debian system. For live shaders install a Vulkan loader, a driver (lavapipe or" \
            "MoltenVK will do) and the Khronos validation layers; without them the edge lessons run simulated."
        return
    fi
    mapfile -t missing < <(missing_packages "${wanted[@]}")
    [ "${#missing[@]}" -gt 0 ] || return 0
    if may_apt; then
        apt_install "${missing[@]}"
    else
        say "setup: not installed: ${missing[*]}"
        say "setup: run  sudo apt-get install ${missing[*]}  and repeat; until then the edge lessons run" \
            "simulated and the browser test is skipped."
    fi
}

python=$(find_python) || {
    if may_apt; then apt_install python3 python3-venv; fi
    python=$(find_python) || {
        say "setup: Python 3.11 or newer with venv is needed. On Debian or Ubuntu: apt-get install python3-venv"
        exit 1
    }
}

stamp=.venv/.setup-$kind
state=$("$python" --version; cat pyproject.toml constraints.txt tools/setup.sh; pwd)
if [ -f "$stamp" ] && [ "$state" = "$(cat "$stamp")" ]; then
    system_packages
    exit 0
fi

say "setup: making .venv with $("$python" --version); the first time takes a minute or two"
rm -f .venv/.setup-*
[ -x .venv/bin/python ] && [ "$(.venv/bin/python --version)" = "$("$python" --version)" ] || "$python" -m venv --clear .venv
install() { .venv/bin/python -m pip install --quiet --constraint constraints.txt --editable "$1"; }
if [ "$kind" = course ]; then install .; else install '.[test]'; fi
if [ "$kind" = test ] && ! install '.[slang,iree,smollm2,mlx]'; then
    say "setup: not every tool that the tests compare with can be installed here; those tests are skipped"
fi
system_packages
if command -v apt-get >/dev/null; then
    say "setup: fetching a Mesa with cooperative matrix into .cache, some 70 MB; the system stays as it is"
    tools/newer_mesa.sh >&2 || say "setup: the lesson on matrix units will use its stand-in"
fi
printf '%s\n' "$state" > "$stamp"

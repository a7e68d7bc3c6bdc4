#!/usr/bin/env bash
# Fetch lavapipe with cooperative matrix into .cache/mesa, without touching the system: Debian's own
# packages of a newer release, from the mirror that this machine's apt is set up with, unpacked beside
# the C library that they need. .cache/mesa/python runs this project's Python on that library.
# Usage: tools/newer_mesa.sh [FOLDER]. Where it cannot be had, it says why in one line and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-.cache/mesa}")
stable=trixie backports=trixie-backports
packages=(mesa-vulkan-drivers libvulkan1 vulkan-validationlayers)
root=$folder/root
stamp=$folder/ready

fail() { printf 'no Mesa with cooperative matrix: %s\n' "$*" >&2; exit 1; }

# The first Debian archive in the configuration of apt, in either of its two formats.
mirror() {
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ -r "$file" ] && sed -nE 's/^URIs:[[:space:]]*([^[:space:]]+).*/\1/p; s/^deb[[:space:]]+(\[[^]]*\][[:space:]]+)?([^[:space:]]+).*/\2/p' "$file"
    done | grep -E '/debian/?$' | head -n 1
}

configure() {
    local keys
    keys=$(find /usr/share/keyrings/debian-archive-keyring.{pgp,gpg} 2>/dev/null | head -n 1) || true
    [ -n "$keys" ] || fail "apt has no keys of Debian: apt-get install debian-archive-keyring"
    mkdir -p "$folder"/apt/{lists/partial,cache/archives/partial}
    : > "$folder/apt/status"
    printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$1" "$stable" "$keys" "$1" "$backports" > "$folder/apt/sources.list"
    cat > "$folder/apt/apt.conf" <<EOF
Dir::State "$folder/apt";
Dir::State::lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
Dir::Etc::SourceList "$folder/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::http::Timeout "20";
Acquire::Retries "2";
EOF
}

# With an empty list of installed packages, what apt downloads is everything that they need.
download() {
    export APT_CONFIG=$folder/apt/apt.conf
    apt-get update -qq >"$folder/apt/log" 2>&1 || fail "the mirror does not give $stable and $backports: $(tail -n 1 "$folder/apt/log")"
    apt-get install -y -qq --download-only -o Debug::NoLocking=1 -t "$backports" "${packages[@]}" >"$folder/apt/log" 2>&1 ||
        fail "apt does not download ${packages[0]}: $(tail -n 1 "$folder/apt/log")"
}

unpack() {
    local package
    for package in "$folder"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$folder/unpacked"; done
    find "$folder/unpacked/usr/share/vulkan/icd.d" -name '*.json' ! -name 'lvp_icd*' -delete
    find "$folder/unpacked/usr/share/vulkan/implicit_layer.d" -name '*.json' -delete 2>/dev/null || true
    find "$folder"/unpacked/usr/lib/*/ -name 'libvulkan_*.so' ! -name 'libvulkan_lvp.so' -delete
    rm -rf "$folder/unpacked/usr/share/doc" "$root"
    mv "$folder/unpacked" "$root"
}

# The loader of the newer C library starts the interpreter, so that both come from one release.
launcher() {
    local libraries loader host
    libraries=$(dirname "$(find "$root/usr/lib" -name libvulkan_lvp.so | head -n 1)")
    loader=$(find "$libraries" -maxdepth 1 -name 'ld-linux-*' | head -n 1)
    host=/usr/lib/$(basename "$libraries")
    [ -n "$loader" ] || fail "the packages hold no loader for this processor"
    cat > "$folder/python.tmp" <<EOF
#!/bin/sh
# Written by tools/newer_mesa.sh.
export VK_DRIVER_FILES=$root/usr/share/vulkan/icd.d/lvp_icd.json VK_ICD_FILENAMES=$root/usr/share/vulkan/icd.d/lvp_icd.json
python=\${COURSE_PYTHON:-$PWD/.venv/bin/python}
exec "$loader" --argv0 "\$python" --library-path "$libraries:$host:/usr/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" "\$python" "\$@"
EOF
    chmod +x "$folder/python.tmp"
    mv "$folder/python.tmp" "$folder/python"
}

[ "$(uname -s)" = Linux ] || fail "it is made of Debian's packages, which need Linux"
for tool in apt-get dpkg-deb; do command -v "$tool" >/dev/null || fail "there is no $tool: this is not Debian"; done
mkdir -p "$folder"
exec 9> "$folder/lock"
flock 9  # two test runs may ask at once
state="$stable $backports ${packages[*]} $(cksum < tools/newer_mesa.sh) $PWD"
if [ -f "$stamp" ] && [ "$state" = "$(cat "$stamp")" ]; then exit 0; fi
archive=$(mirror) || true
[ -n "$archive" ] || fail "apt is set up with no Debian archive"
echo '*' > "$folder/.gitignore"
rm -rf "$folder/unpacked" "$stamp"
configure "$archive"
download
unpack
launcher
rm -rf "$folder/apt"
printf '%s' "$state" > "$stamp"

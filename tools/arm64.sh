#!/bin/sh
# arm64.sh DIR: what building for 64-bit ARM and running it under qemu-user need beside the packages marked `arm`
# in packages.txt: a sysroot DIR with the libraries of Debian's arm64 packages and Rust's standard library for that
# machine. Nothing is installed into this one: apt works on lists and a state of its own, and needs no root.
set -eu
[ $# = 1 ] || { echo "usage: arm64.sh DIR" >&2; exit 2; }
dir=$1 packages=$(dirname "$0")/packages.txt

# The libraries that the program is linked with.
wanted="$(awk '$1 == "run" && $2 ~ /^lib/ { printf "%s ", $2 }' "$packages")libstd-rust-web-dev"
[ "$(cat "$dir/ready" 2>/dev/null)" != "$wanted" ] || exit 0

missing=$(awk '$1 == "arm64" { print $2, $3 }' "$packages" | while read -r package probe; do
    command -v "$probe" >/dev/null || printf '%s ' "$package"
done)
[ -z "$missing" ] || { echo "check-arm64 needs packages that are not here: apt-get install $missing" >&2; exit 1; }

rm -rf "$dir"
mkdir -p "$dir/apt/state/lists/partial" "$dir/apt/cache/archives/partial" "$dir/root"
dir=$(cd "$dir" && pwd)
: >"$dir/apt/status"

apt() {
    apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$dir/apt/state" \
        -o Dir::State::status="$dir/apt/status" -o Dir::Cache="$dir/apt/cache" -o Debug::NoLocking=1 \
        -o APT::Install-Recommends=false -o Acquire::Retries=3 "$@"
}

echo "arm64: fetching $wanted and what they need"
apt update >"$dir/log" 2>&1 && apt install --download-only $wanted >>"$dir/log" 2>&1 || {
    tail -n 20 "$dir/log" >&2
    exit 1
}
for deb in "$dir"/apt/cache/archives/*.deb; do dpkg-deb -x "$deb" "$dir/root"; done
# Links that start at / mean the sysroot.
find "$dir/root" -type l -lname '/*' | while read -r link; do
    ln -sfn "$dir/root$(readlink "$link")" "$link"
done
# A sysroot of the Rust compiler, for programs of both machines.
mkdir -p "$dir/rust/lib/rustlib"
ln -s /usr/lib/rustlib/x86_64-unknown-linux-gnu "$dir/root/usr/lib/rustlib/aarch64-unknown-linux-gnu" \
    "$dir/rust/lib/rustlib/"
rm -rf "$dir/apt" "$dir/root/usr/share"
printf %s "$wanted" >"$dir/ready"

#!/bin/sh
# cargo.sh: runs a cargo that is new enough (1.87) with the arguments given; `cargo.sh --find` says which.
# Debian 12's own rustc is too old; its rustc-web and cargo-web are kept current for browsers and will do.
set -u

new_enough() { # $1: a cargo
    version=$("$1" --version 2>/dev/null) || return 1
    echo "$version" | awk '{ split($2, v, "."); exit !(v[1] > 1 || (v[1] == 1 && v[2] >= 87)) }'
}

found=
for cargo in ${IG_CARGO-} "$(command -v cargo)" /usr/bin/cargo /usr/bin/cargo-1.* /usr/lib/rust-1.*/bin/cargo; do
    if [ -x "$cargo" ] && new_enough "$cargo"; then found=$cargo; break; fi
done
if [ -z "$found" ]; then
    echo "There is no cargo of version 1.87 or later. On Debian: apt-get install rustc-web cargo-web" >&2
    echo "Elsewhere: the distribution's newest rustc and cargo, or rustup (https://rustup.rs)." >&2
    exit 1
fi
if [ "${1-}" = --find ]; then echo "$found"; exit 0; fi

# A cargo of the system would run whatever rustc is first on PATH: it gets the one it came with.
rustc=${found%/*}/$(basename "$found" | sed s/cargo/rustc/)
case $found in
/usr/*) if [ -x "$rustc" ]; then RUSTC=${RUSTC:-$rustc}; export RUSTC; fi ;;
esac
exec "$found" "$@"

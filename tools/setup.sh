# setup.sh: what ./run and ./check share; sourced by both, from the root of the checkout.
# Finds out what is missing before it asks for anything, installs by apt, says all the time what it does.

B=${B:-build}
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
LOG=$B/setup.log

say() { printf '%s\n' "$*"; }
die() {
    printf '%s\n' "$@" >&2
    [ -z "${VERDICT-}" ] || say "$VERDICT"
    exit 1
}

# step TEXT: the heading of what comes next, with its number.
step_number=0
step() {
    step_number=$((step_number + 1))
    say "[$step_number/$N_STEPS] $*"
}

# quietly COMMAND...: its output goes to the log, its last line is shown every few seconds. It runs beside the
# shell, because a shell that waits for a command of its own hears no signal before that has ended.
quietly() {
    (
        seconds=0
        while sleep 3 >/dev/null 2>&1; do
            seconds=$((seconds + 3))
            printf '      %3d s  %s\n' "$seconds" "$(tail -n 1 "$LOG" 2>/dev/null | tr -d '\r' | cut -c 1-90)"
        done
    ) &
    beat=$!
    "$@" >"$LOG" 2>&1 &
    work=$!
    trap 'interrupted 130' INT
    trap 'interrupted 143' TERM
    wait "$work"
    code=$?
    kill "$beat" 2>/dev/null
    wait "$beat" 2>/dev/null
    trap - INT TERM
    return "$code"
}

interrupted() { # $1: the exit code; make takes its compilers along, and half a file is none
    trap '' INT TERM
    kill "$beat" "$work" 2>/dev/null
    wait "$work" 2>/dev/null
    exit "$1"
}

# failed TEXT...: the end of the log, then what to do.
failed() {
    tail -n 25 "$LOG" >&2
    die "" "$@" "The whole output is in $LOG."
}

# ---- packages ---------------------------------------------------------------------------------------------

is_there() { # $1: a probe of packages.txt
    case $1 in
    /*) [ -e "$1" ] ;;
    pc:*) pkg-config --exists "${1#pc:}" 2>/dev/null ;;
    py:*) python3 -c "import ${1#py:}" 2>/dev/null ;;
    cargo) sh tools/cargo.sh --find >/dev/null 2>&1 ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

# missing KIND...: the packages of these kinds whose probe fails.
missing() {
    while read -r when package probe _; do
        case " $* " in
        *" $when "*) is_there "$probe" || printf '%s ' "$package" ;;
        esac
    done <tools/packages.txt
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}
apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

# The first pair of packages whose rustc is 1.87 or later.
rust_packages() {
    for rustc in rustc-web rustc $(apt-cache pkgnames rustc-1. | grep -E '^rustc-1\.[0-9]+$' | sort -rV); do
        apt-cache policy "$rustc" | awk '/Candidate:/ { sub("^[0-9]+:", "", $2); split($2, v, ".")
            ok = v[1] > 1 || (v[1] == 1 && v[2] >= 87) } END { exit !ok }' || continue
        printf '%s %s' "$rustc" "$(printf %s "$rustc" | sed s/rustc/cargo/)"
        return 0
    done
    return 1
}

# install_packages KIND...
install_packages() {
    wanted=$(missing "$@")
    if [ -z "$wanted" ]; then
        step "tools and libraries: all there"
        return
    fi
    step "tools and libraries: installing $wanted"
    if ! command -v apt-get >/dev/null 2>&1; then
        die "This machine has no apt-get. Please install what these Debian packages hold, then run again:" \
            "    $wanted" "(rust: rustc and cargo 1.87 or later.) tools/packages.txt says why each is needed."
    fi
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || die "Packages are missing, and this is not root and has no sudo." \
            "As root: apt-get install $(echo "$wanted" | sed 's/rust /rustc-web cargo-web /')"
        say "      (sudo may ask for your password: it is for apt-get install, and for nothing else)"
        sudo -v || die "Without root the packages cannot be installed: $wanted"
    fi
    quietly apt update || say "      apt-get update failed in part; going on with what is known"
    case " $wanted" in
    *" rust "*)
        rust=$(rust_packages) || die "No package of this distribution holds a rustc of 1.87 or later." \
            "On Debian 12 rustc-web is in bookworm-security: is that in the apt sources?" \
            "Otherwise install Rust from https://rustup.rs and run this again."
        wanted="$rust $(echo " $wanted" | sed 's/ rust / /')"
        ;;
    esac
    # shellcheck disable=SC2086  # a list of words
    quietly apt install -y --no-install-recommends $wanted ||
        failed "apt-get install failed. Please put it right (often: apt-get -f install) and run this again."
    wanted=$(missing "$@")
    [ -z "$wanted" ] || failed "Still missing after the installation: $wanted"
}

# ---- the build --------------------------------------------------------------------------------------------

# build ARGUMENTS of make...
build() {
    quietly make -j"$JOBS" B="$B" "$@" || failed "The build failed."
}

build_engine() {
    if [ -e "$B/guide/release/libguide.a" ]; then
        step "the template engine: looking for changes"
    else
        step "building the template engine (first time: a few minutes)"
    fi
    build "$B/guide/release/libguide.a"
}

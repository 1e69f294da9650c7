#!/bin/sh
# Prints the folder of a cargo that is new enough. Fetches one with rustup into .toolchain/ where there is none.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
need=89 # Rust 1.89

new_enough() {
    minor=$("$1" --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge "$need" ]
}

own="$root/.toolchain/cargo/bin"
found=$(command -v cargo || true)
if [ -n "$found" ] && new_enough "$found"; then
    dirname "$found"
    exit 0
fi
if new_enough "$own/cargo"; then
    echo "$own"
    exit 0
fi
echo "No Rust of version 1.$need or newer here; fetching one into .toolchain/ with rustup" >&2
export RUSTUP_HOME="$root/.toolchain/rustup" CARGO_HOME="$root/.toolchain/cargo"
if command -v rustup >/dev/null; then
    rustup toolchain install stable --profile minimal >&2 && toolchain=$(rustup run stable rustc --print sysroot) \
        && echo "$toolchain/bin" && exit 0
elif command -v curl >/dev/null; then
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs -o "$root/.toolchain-init" >&2 \
        && sh "$root/.toolchain-init" -y --no-modify-path --profile minimal >&2 && rm -f "$root/.toolchain-init" \
        && echo "$own" && exit 0
fi
rm -f "$root/.toolchain-init"
echo "penstock needs Rust 1.$need or newer to build: install it from https://rustup.rs (or your system's packages: rustc and cargo)" >&2
exit 1

#!/bin/sh
# Says in one line what is missing to build penstock.
set -eu
python=${1:-python3}
missing=""
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || missing="$missing, Python 3.11 or newer"
"$python" -c 'import venv, ensurepip' 2>/dev/null || missing="$missing, Python's venv module (Debian: python3-venv)"
command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || missing="$missing, a C compiler (Debian: gcc)"
command -v git >/dev/null || missing="$missing, git"
if [ -n "$missing" ]; then
    echo "Please install: ${missing#, }" >&2
    exit 1
fi

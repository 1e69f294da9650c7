#!/bin/sh
# Emulators of Google Cloud Storage and Azure for the slow tests, into .toolchain/clouds: with go and npm where they are there,
# else the tests that need them are skipped and say so.
set -u
home="$(cd "$(dirname "$0")/.." && pwd)/.toolchain/clouds"
mkdir -p "$home/azurite"
if [ ! -x "$home/bin/fake-gcs-server" ]; then
    if command -v go >/dev/null; then
        GOBIN="$home/bin" go install github.com/fsouza/fake-gcs-server@v1.56.1 || echo "fake-gcs-server was not installed"
    else
        echo "go is not installed: tests of Google Cloud Storage are skipped"
    fi
fi
if [ ! -d "$home/azurite/node_modules/azurite" ]; then
    if command -v npm >/dev/null; then
        [ -f "$home/azurite/package.json" ] || echo '{"private": true}' >"$home/azurite/package.json"
        (cd "$home/azurite" && npm install --silent --no-audit --no-fund azurite@3.35.0) || echo "Azurite was not installed"
    else
        echo "npm is not installed: tests of Azure are skipped"
    fi
fi
exit 0

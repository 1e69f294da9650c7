#!/bin/sh
# nginx for the tests of web servers: with apt where that is possible, else the tests that need it are skipped and say so.
set -u
for place in "$(command -v nginx || true)" /usr/sbin/nginx; do
    [ -n "$place" ] && [ -x "$place" ] && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    # The package would start a server of its own.
    if { apt-get install -qq -y --no-install-recommends nginx-light ||
        { apt-get update -qq && apt-get install -qq -y --no-install-recommends nginx-light; }; } >/dev/null 2>&1; then
        command -v service >/dev/null && service nginx stop >/dev/null 2>&1
        exit 0
    fi
fi
echo "nginx is not installed: tests of web servers are skipped (apt-get install nginx-light)"

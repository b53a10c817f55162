#!/bin/sh
# Runs the tests on a Python version that is not installed: other_pythons.sh 3.14 [arguments of pytest]
#
# The interpreters come from Debian's unstable suite, which debootstrap installs into a directory (SID, default:
# /var/tmp/perdure-sid) from the mirror that this machine's apt uses. It needs root, and about 2 GB. The directory is
# kept, and a second run begins with the tests; remove it to start from scratch. The script removes its mounts at the
# end.
set -eu
cd "$(dirname "$0")/.."
version=${1:?say which Python, for example 3.14}
shift
sid=${SID:-/var/tmp/perdure-sid}
tree=perdure-$version

if ! command -v debootstrap >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends debootstrap >/dev/null
fi

if [ ! -e "$sid/.perdure-ready" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sed -n 1p)
    debootstrap --variant=minbase --include=ca-certificates,gcc,g++,libc6-dev,make sid "$sid" "$mirror"
    apt-config dump | grep -E '^Acquire::(http|https|Check-Valid-Until)\b' >"$sid/etc/apt/apt.conf.d/90machine" || true
    printf '#!/bin/sh\nexit 101\n' >"$sid/usr/sbin/policy-rc.d" # no package starts a server: the tests start their own
    chmod +x "$sid/usr/sbin/policy-rc.d"
    touch "$sid/.perdure-ready"
fi

# Settings that this machine needs to reach its package index.
for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    if [ -e "$file" ]; then cp -L "$file" "$sid$file"; fi
done

mkdir -p "$sid/$tree"
rm -rf "$sid/$tree/src" "$sid/$tree/tests"
git ls-files -z --cached --others --exclude-standard -- . ':!.venv' | tar c --null -T - | tar x -C "$sid/$tree"

export PIP_CERT=/etc/ssl/certs/ca-certificates.crt PYTHON="python$version" DEBIAN_FRONTEND=noninteractive
exec unshare --mount sh -euc '
    sid=$1 tree=$2 && shift 2
    for directory in proc sys dev; do mount --rbind "/$directory" "$sid/$directory"; done
    exec chroot "$sid" sh -euc "
        cd \"/\$1\" && shift
        if ! command -v \$PYTHON >/dev/null; then
            apt-get update -qq
            apt-get install -qq -y --no-install-recommends \$PYTHON-venv \$PYTHON-dev >/dev/null
        fi
        make setup
        exec .venv/bin/python -m pytest \"\$@\"
    " sh "$tree" "$@"
' sh "$sid" "$tree" "$@"

#!/usr/bin/env bash
# Checks the protos: `proto.sh check` runs buf's lint rules, and compares the public API with the last release's. At a
# release, `proto.sh baseline` makes the present API the one to compare with (proto/baseline.binpb).
set -euo pipefail
cd "$(dirname "$0")/.."
buf=.tools/node_modules/.bin/buf baseline=proto/baseline.binpb
[ -x "$buf" ] || { echo "proto: buf is missing: run scripts/setup.sh lint" >&2; exit 1; }
case ${1:-check} in
    check)
        "$buf" lint proto
        "$buf" breaking proto --against "$baseline" || {
            echo "proto: this change breaks clients of the last release. Add fields instead; never change or remove them." >&2
            exit 1
        }
        ;;
    baseline) "$buf" build proto --path proto/proto/rein/v1 --exclude-source-info -o "$baseline" ;;
    *) echo "usage: proto.sh [check|baseline]" >&2; exit 2 ;;
esac

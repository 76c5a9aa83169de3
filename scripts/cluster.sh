#!/usr/bin/env bash
# Starts a cluster on this machine: etcd, a controller, two routers, two groups of two workers. Ctrl-C stops all of it.
set -euo pipefail
cd "$(dirname "$0")/.."
rein=${REIN_BIN:-target/release/rein}
model=${MODEL:-models/demo}
dir=$(mktemp -d "${TMPDIR:-/tmp}/rein-cluster.XXXXXX")
etcd_port=${ETCD_PORT:-23790}
# HTTP and gRPC ports of both routers.
read -r http_1 http_2 grpc_1 grpc_2 <<<"${ROUTER_PORTS:-8000 8001 50051 50052}"
export REIN_ETCD=127.0.0.1:$etcd_port REIN_CLUSTER=${REIN_CLUSTER:-local}

# Routers first and etcd last, so that each process can still shut down in order.
end() {
    trap - EXIT INT TERM HUP
    for kind in router worker controller etcd; do
        for name in "${names[@]}"; do [[ $name == $kind* ]] && kill -TERM "${pids[$name]}" 2>/dev/null || true; done
        for name in "${names[@]}"; do [[ $name == $kind* ]] && wait "${pids[$name]}" 2>/dev/null || true; done
    done
    rm -rf "$dir/etcd"
    echo "cluster: stopped; logs are in $dir"
}
declare -A pids
names=()
run() { # in its own session, so that a terminal's Ctrl-C reaches only this script
    local name=$1
    shift
    setsid "$@" >"$dir/$name.log" 2>&1 &
    pids[$name]=$!
    names+=("$name")
}
trap end EXIT INT TERM HUP

url=http://127.0.0.1:$etcd_port peer=http://127.0.0.1:$((etcd_port + 1))
run etcd etcd --data-dir "$dir/etcd" --listen-client-urls "$url" --advertise-client-urls "$url" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer"
run controller "$rein" controller --id controller
run router-1 "$rein" router --id router-1 --http "127.0.0.1:$http_1" --grpc "127.0.0.1:$grpc_1"
run router-2 "$rein" router --id router-2 --http "127.0.0.1:$http_2" --grpc "127.0.0.1:$grpc_2"
for i in 1 2 3 4; do
    run "worker-$i" "$rein" worker --id "worker-$i" --model "$model" --group-size 2 --threads 1 --kv-memory 128
done

ready() { (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n' >&3 && head -1 <&3 | grep -q 200) 2>/dev/null; }
serving() { "$rein" status --json 2>/dev/null | grep -o '"state":"serving"' | wc -l; }
tries=300
until ready "$http_1" && ready "$http_2" && [[ $(serving) == 2 ]]; do
    for name in "${names[@]}"; do
        kill -0 "${pids[$name]}" 2>/dev/null || { echo "cluster: $name has exited:" >&2; tail -5 "$dir/$name.log" >&2; exit 1; }
    done
    ((tries--)) || { echo "cluster: two groups do not serve yet; logs are in $dir" >&2; exit 1; }
    sleep 0.2
done
"$rein" status
cat <<EOF

cluster: ready. Playground: http://127.0.0.1:$http_1/   logs: $dir
  curl http://127.0.0.1:$http_1/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "$(basename "$(realpath "$model")")", "messages": [{"role": "user", "content": "Hello"}]}'
  the other router: http://127.0.0.1:$http_2   gRPC: 127.0.0.1:$grpc_1 and :$grpc_2
  watch it:         REIN_ETCD=$REIN_ETCD REIN_CLUSTER=$REIN_CLUSTER $rein status --watch
  kill a worker:    kill -9 ${pids[worker-1]}   (worker-1; streams continue)
  drain a worker:   REIN_ETCD=$REIN_ETCD REIN_CLUSTER=$REIN_CLUSTER $rein drain worker-2
Ctrl-C stops all of it.
EOF
# A killed worker does not end the cluster.
while kill -0 "${pids[etcd]}" 2>/dev/null; do sleep 1 & wait $! || true; done

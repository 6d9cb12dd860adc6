# The interpreter of .venv: one that make finds, or PYTHON=python3.12; PYTHON=uv has uv fetch one.
PYTHON ?=
# Any Python runs this: it chooses that of .venv, checks what is needed before anything is fetched, and installs only
# files whose hashes are in a lock, which has every dependency.
SET_UP = @for python in python3 python3.13 python3.12 python3.11 $(PYTHON); do \
	    if $$python -c 'import json, subprocess' 2>/dev/null; then \
	        PYTHONPATH=tools exec $$python -m trireme_tools.prepare.set_up --python=$(PYTHON)
NO_PYTHON = ; fi; done; echo "there is no Python 3 here; on Debian and Ubuntu: sudo apt-get install python3-venv libpython3-dev"; exit 1
# Under LC_ALL=C a Python that Triton starts could not read the name of a folder with an umlaut.
ifeq ($(findstring utf8,$(subst -,,$(shell echo "$${LC_ALL:-$${LC_CTYPE:-$$LANG}}" | tr A-Z a-z))),)
export LC_ALL := C.UTF-8
endif
# sm/__init__.py is the one place that has the version.
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' sm/__init__.py)

.PHONY: screenshots serve test test-rest test-all snapshots test-install test-image test-packages test-cluster check fix lock dist audit sbom image docs bench bench-quick needs-wrk endpoint-life from-a-laptop clean

serve: .venv/.serve  ## set everything up and start nginx, the router and Triton on 8080; EXAMPLES=1 adds models, RELOAD=1 reloads edited clients
	@.venv/bin/sm prepare $(if $(EXAMPLES),--examples)
	@exec .venv/bin/python serve $(if $(EXAMPLES),--examples,--demo) $(if $(RELOAD),--reload)

# Without compiled modules every process of every box would compile them again.
unexport PYTHONDONTWRITEBYTECODE
# Most tests wait for processes: four at once use two cores.
JOBS ?= 4
# tests/conftest.py has the order of the groups, and fails a run that misses a file.
PYTEST = .venv/bin/pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --durations=20
# Another Triton than the wheel's: make test TRITON_SERVER=/path/to/tritonserver
ifneq ($(TRITON_SERVER),)
export TRIREME_TRITON_SERVER := $(TRITON_SERVER)
endif
test: .venv/.dev  ## run the unit tests and the core of the integration tests in a few minutes, JOBS at once
	@.venv/bin/sm prepare
	$(PYTEST) --ignore=tests/e2e --ignore=tests/newcomer --ignore=tests/cluster -m 'unit or core' $(ARGS)

test-rest: .venv/.dev  ## run the tests that make test leaves out, except the longest ones and the standing attack
	@.venv/bin/sm prepare
	$(PYTEST) --ignore=tests/unit --ignore=tests/e2e/faults --ignore=tests/cluster -m 'not (core or exhaustive)' $(ARGS)

test-all: test test-rest  ## run every test, and the standing attack in its short form; for the full form: TRIREME_FULL_ATTACK=true
	.venv/bin/pytest -m exhaustive --ignore=tests/e2e/faults
	.venv/bin/pytest tests/e2e/faults
	TRIREME_TEST_LIBRARIES=true .venv/bin/pytest tests/integration/reference/test_toolkit_containers.py tests/e2e/reference

snapshots: .venv/.dev  ## write tests/snapshots again: the generated text that tests compare; read the difference before the commit
	rm -rf tests/snapshots
	TRIREME_RENEW_SNAPSHOTS=true .venv/bin/pytest -q $$(grep -rl check_snapshot tests --include='test_*.py')

test-install: .venv/.dev  ## install the wheels and the sdist into clean environments and run every command there
	.venv/bin/pytest tests/e2e/distribution

test-image: .venv/.dev  ## build the image with Podman and run the tests that are about it
	.venv/bin/sm prepare
	$(PYTEST) -m 'not exhaustive' tests/e2e/container

test-cluster: .venv/.dev  ## run the tests against the Kubernetes that KUBECONFIG names; TRIREME_CLUSTER_IMAGE, TRIREME_CLUSTER_TOOL: see tests/cluster/conftest.py
	.venv/bin/pytest -m cluster --timeout 900 tests/cluster $(ARGS)

test-packages:  ## install what the tests need from Debian's or Ubuntu's packages, with sudo
	sudo apt-get update -qq
	sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx-light curl wrk docker-registry podman debsecan

check: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

fix: .venv/.dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# Every warning is an error: a broken link, a page that no menu lists, a reference to an undocumented name.
docs: .venv/docs/.done  ## build the documentation into build/docs; open build/docs/index.html
	.venv/docs/bin/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --conf-dir docs/_site . build/docs

dist: .venv/.dev  ## build the sdist and the three wheels into dist/ and check them; with TAG=v1.2.3, as a release does, the tag too
ifneq ($(TAG),)
	@test "$(TAG)" = "v$(VERSION)" || { echo "the tag is $(TAG), and sm/__init__.py has the version $(VERSION)"; exit 1; }
	@grep -q '^## \[$(VERSION)\]' CHANGELOG.md || { echo "CHANGELOG.md has no section [$(VERSION)]"; exit 1; }
endif
	rm -rf dist
	.venv/bin/python -m build --no-isolation
	.venv/bin/python -m build --no-isolation --wheel --outdir dist extensions
	.venv/bin/python -m build --no-isolation --wheel --outdir dist tools
	.venv/bin/twine check --strict dist/*
	.venv/bin/check-wheel-contents dist/trireme_serving-*.whl
	.venv/bin/check-wheel-contents --config extensions/pyproject.toml dist/trireme_extensions-*.whl
	.venv/bin/check-wheel-contents --config tools/pyproject.toml dist/trireme_tools-*.whl

sbom: .venv/.dev  ## list every package in CycloneDX in build/sbom; IMAGE_SBOM=trireme:cpu lists an image's, Debian's too
	@.venv/bin/python tools/sbom.py build/sbom "$(ENGINE)" "$(IMAGE_SBOM)"

audit: .venv/.dev  ## look for known vulnerabilities: PyPI's of everything in the locks, Debian's of the image's packages
	.venv/bin/pip-audit --requirement locks/requirements.lock --requirement locks/requirements-dev.lock --no-deps --disable-pip --progress-spinner off
	@.venv/bin/python tools/audit_image.py "$(ENGINE)" "$(IMAGE)"

# This builds the CPU image. For GPUs: make image BASE_IMAGE=nvcr.io/nvidia/tritonserver:26.11-py3 IMAGE=trireme
# For a CPU with that image's Triton: make image TRITON=nvcr.io/nvidia/tritonserver:26.11-py3
IMAGE ?= trireme:cpu
ENGINE ?= $(shell tools/build_image.sh --engine)
image: $(if $(filter demo,$(MODELS)),.venv/.serve)  ## build the container image; MODELS=demo, a folder or a .tar.gz adds models to it; BUILD_FLAGS go to the engine
	@IMAGE='$(IMAGE)' tools/build_image.sh

COMPILE = .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    --no-annotate --no-emit-package pip
lock: .venv/.dev  ## update the locks, for every Python version and platform at once
	$(COMPILE) pyproject.toml --output-file locks/requirements-dev.lock --upgrade $(addprefix --extra=,cpu otel s3 sound tasks gateway bench dev)
	$(COMPILE) pyproject.toml --output-file locks/requirements.lock --constraint locks/requirements-dev.lock $(addprefix --extra=,cpu otel s3 sound tasks)
	echo nvidia-pytriton==0.7.0 | $(COMPILE) --no-deps - >> locks/requirements.lock
	printf 'hatchling\neditables\nuv\n' | $(COMPILE) --output-file locks/requirements-build.lock --constraint locks/requirements-dev.lock -
	cp locks/requirements-dev.lock docs/_site/requirements.lock
	$(COMPILE) pyproject.toml --output-file docs/_site/requirements.lock --extra=docs

# An environment that was copied or moved, or whose Python has gone, is made again.
WHOLE := $(shell grep -qsF '$(CURDIR)/.venv/bin/' .venv/bin/sm && .venv/bin/python -c 'import sm' 2>/dev/null && echo whole)
.PHONY: again
# Where models are needed, they are fetched and converted while the packages are installed.
serve test test-rest test-image endpoint-life from-a-laptop bench bench-quick: WEIGHTS = --weights $(if $(EXAMPLES),--examples)
.venv/.serve: $(if $(WHOLE),,again) locks/requirements.lock locks/requirements-build.lock pyproject.toml extensions/pyproject.toml tools/pyproject.toml
	$(SET_UP) serve $(WEIGHTS) $(NO_PYTHON)
	@touch $@

.venv/.dev: .venv/.serve locks/requirements-dev.lock
	$(SET_UP) dev $(NO_PYTHON)
	@touch $@

screenshots: .venv/.dev  ## take the screenshots of the playground and the dashboard for the documentation; needs chromium
	@.venv/bin/python -m tests.e2e.browser.screenshots

.PHONY: gpu-bundle
gpu-bundle: .venv/.serve  ## make build/gpu-bundle, which python -m bench.gpu takes to a machine with a GPU; ARGS="--help" lists the options
	@.venv/bin/python -m bench.gpu.bundle $(ARGS)

endpoint-life: .venv/.dev  ## run an endpoint from package to delete on a simulated SageMaker
	@.venv/bin/sm prepare
	@IMAGE=111122223333.dkr.ecr.eu-west-1.amazonaws.com/trireme:played .venv/bin/python -m tests.support.played_aws examples/endpoint-life.sh

from-a-laptop: .venv/.dev  ## build an image, deploy and delete it without Docker on a simulated AWS; the builds there need Podman and docker-registry
	@.venv/bin/sm prepare
	@.venv/bin/python -m tests.support.played_aws examples/from-a-laptop.sh

# FULL=1 measures all forms and numbers of callers with more draws; it takes hours. With ARGS only the last part runs.
bench: needs-wrk .venv/.dev  ## compare this box with others in 15 minutes: photographs, three models at once, and the rest; FULL=1 runs all, ARGS="--help" lists the options
	@.venv/bin/sm prepare
ifeq ($(ARGS),)
	@.venv/bin/python -m bench photos $(if $(FULL),--draws 3,--contestants trireme fastapi --seconds 2 --regimes instant) \
	    --out bench/results/photos.json
	@.venv/bin/python -m bench mixed $(if $(FULL),--draws 3,--contestants trireme fastapi litserve --seconds 8 --loads 0.95) \
	    --out bench/results/mixed.json
endif
	@.venv/bin/python -m bench $(if $(FULL),--forms json raw --callers 1 8 32 128 --seconds 3 --draws 3,$(if $(ARGS),,--callers 8)) $(ARGS)

needs-wrk:
	@command -v wrk >/dev/null || { echo "there is no wrk, which makes the load; on Debian and Ubuntu: apt-get install wrk"; exit 1; }

bench-quick: .venv/.serve  ## count a worker's work per request, independent of other load; ARGS=--keep keeps the counts
	@.venv/bin/sm prepare
	@.venv/bin/python -m bench.quick $(ARGS)

.venv/docs/.done: .venv/.serve docs/_site/requirements.lock
	$(SET_UP) docs $(NO_PYTHON)
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info

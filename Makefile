PYTHON ?= python3
# On a terminal pip shows what it fetches and how far it is.
QUIET := $(if $(shell test -t 2 && echo terminal),,--quiet)
PIP = .venv/bin/pip install $(QUIET) --disable-pip-version-check --retries 5 --constraint requirements.lock

.PHONY: serve test test-all check fix lock image bench bench-quick endpoint-life clean

serve: .venv/.serve  ## set everything up, then nginx + router + Triton on 8080; EXAMPLES=1 for more models, RELOAD=1 while you edit clients
	@.venv/bin/sm prepare $(if $(EXAMPLES),--examples)
	@exec .venv/bin/python serve $(if $(EXAMPLES),--examples,--demo) $(if $(RELOAD),--reload)

JOBS ?= 2
test: .venv/.dev  ## every test but the longest (marked exhaustive) and the standing attack; JOBS at once
	@.venv/bin/sm prepare
	.venv/bin/pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder --ignore=tests/faults -m 'not exhaustive' $(ARGS)

test-all: test  ## make test, the longest tests, and the standing attack in its bounded form; in full: python -m tests.faults
	.venv/bin/pytest -m exhaustive --ignore=tests/faults
	.venv/bin/pytest tests/faults
	TRIREME_TEST_LIBRARIES=true .venv/bin/pytest tests/reference/test_toolkit_containers.py

check: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

fix: .venv/.dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# The CPU flavour; for NVIDIA's Triton: make image BASE_IMAGE=nvcr.io/nvidia/tritonserver:26.07-py3 IMAGE=trireme
ENGINE ?= $(shell command -v docker || command -v podman)
BASE_IMAGE ?= debian:bookworm-slim
IMAGE ?= trireme:cpu
DEMO = $(or $(TRIREME_CACHE),$(HOME)/.cache/trireme)/repository/cpu
BUILD = $(ENGINE) build --build-arg BASE_IMAGE=$(BASE_IMAGE) --build-arg REVISION=$$(git rev-parse HEAD || echo unknown) \
	    $(BUILD_FLAGS) --tag $(IMAGE)
image: $(if $(filter demo,$(MODELS)),.venv/.serve)  ## build the container image; MODELS=demo, a folder or a .tar.gz are baked in; BUILD_FLAGS are handed on
	@test -n "$(ENGINE)" || { echo "there is no docker and no podman; on Debian and Ubuntu: apt-get install podman"; exit 1; }
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

lock: .venv/.dev  ## write requirements.lock anew, for every Python version at once
	.venv/bin/uv pip compile --quiet --universal --python-version 3.10 --all-extras --upgrade \
	    --no-emit-index-url --no-header --no-annotate --no-emit-package pip --no-emit-package setuptools pyproject.toml --output-file requirements.lock
	echo "nvidia-pytriton==0.7.0" >> requirements.lock

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else f"trireme needs Python 3.10 to 3.13; {sys.executable} is {v[0]}.{v[1]}. Try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null \
	    || { echo "installing python3-venv with apt-get"; apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "no virtual environment could be made; on Debian and Ubuntu: apt-get install python3-venv, then make $(MAKECMDGOALS) again"; exit 1; }

# Triton's server comes in a wheel whose own Python dependencies are not needed.
.venv/.serve: .venv/bin/python requirements.lock pyproject.toml
	@echo "installing the router and Triton's server into .venv (about 1 minute the first time)"
	@$(PIP) --editable '.[cpu]'
	@$(PIP) --no-deps nvidia-pytriton \
	    || { echo "if pip found no nvidia-pytriton: it is for Linux on x86-64 with glibc 2.35 or newer (Debian 12, Ubuntu 22.04)"; exit 1; }
	@touch $@

.venv/.dev: .venv/.serve
	@echo "installing the test tools into .venv"
	@$(PIP) --editable '.[cpu,dev]'
	@touch $@

endpoint-life: .venv/.dev  ## an endpoint from package to delete, on a SageMaker that is played here
	@.venv/bin/sm prepare
	@IMAGE=111122223333.dkr.ecr.eu-west-1.amazonaws.com/trireme:played .venv/bin/python -m tests.platform examples/endpoint-life.sh

# Where FULL=1 is given: all forms and numbers of callers, more draws. It takes hours.
bench: .venv/.bench  ## this box against others, under 20 minutes; FULL=1 for all, ARGS="--help" for what can be chosen
	@.venv/bin/sm prepare
	@.venv/bin/python -m bench $(if $(FULL),--forms json raw --callers 1 8 32 128 --seconds 3 --draws 3) $(ARGS)

bench-quick: .venv/.serve  ## what a request makes a worker do, in counts that no other load changes; ARGS=--keep keeps them
	@.venv/bin/sm prepare
	@.venv/bin/python -m bench.quick $(ARGS)

.venv/.bench: .venv/.serve
	@echo "installing what the benchmark draws with into .venv"
	@$(PIP) --editable '.[cpu,bench]'
	@touch $@

clean:
	rm -rf .venv build *.egg-info

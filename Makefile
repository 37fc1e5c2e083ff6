# The one list of tasks, also for CI. `make` alone prints it.
PY := .venv/bin/python
# Images that the system tests run in; they are cached, and rebuilt when lock or code changes.
TEST_IMAGES := mpi-base tensorflow bridge
BENCH_IMAGES := mpi-base tensorflow tensorflow-horovod pytorch bridge analytics
BENCH_COMM := comm-node step-efficiency comm-peers comm-link comm-link-torch comm-scaling

# A user's Python settings would reach into the virtual environment, or have every process compile the tests again.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
.PHONY: help setup test-setup venv dist lock kernel-lock demo test test-full images catalogue check docs fix bench bench-comm bench-scale bench-convergence bench-images native image-tensorflow validate clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do \
	    printf '  make %-10s %s\n' "$$name" "$$text"; done

setup: ## Python environment, system packages, Apptainer, a host MPI
	@sh bootstrap.sh

venv:
	@sh bootstrap.sh venv

demo: setup ## build an image, swap its MPI, train on 2 ranks, prove it, report
	@$(PY) -m tools.demo

test: images ## what CI runs: unit and system tests
	@$(PY) -m pytest tests/unit tests/integration tests/project -n auto --dist loadgroup -q -m "not full" --hypothesis-profile fixed
	@$(PY) -m pytest tests/system -n 3 --dist loadfile -q -m "not full and not alone" --hypothesis-profile fixed --durations=20
	@$(PY) -m pytest tests/system -m "alone and not full" --hypothesis-profile fixed

test-full: images ## the tests that take longer than CI allows, or TESTS= of them; outcomes kept as JSON
	@$(if $(TESTS),:,$(PY) -m pytest tests/unit tests/integration tests/project -n auto --dist loadgroup -q -m "not full" --hypothesis-profile thorough)
	@$(PY) -m pytest -n 2 --dist loadfile -q -m "full and not alone" --results=benchmarks/results/test-full.json $(TESTS)
	@$(PY) -m pytest -q -m "full and alone" --results=benchmarks/results/test-full.json $(TESTS) || [ $$? -eq 5 ] # none of TESTS

test-setup: ## and what only the tests run: a registry, Podman
	@sh bootstrap.sh test

images: test-setup
	@for image in $(TEST_IMAGES); do .venv/bin/fairlead build "$$image" || exit; done

catalogue: test-setup ## build every recipe that has a lock; write docs/reference/catalogue.md
	@$(PY) -m tools.catalogue

check: venv docs ## ruff, mypy, the layers of the rooms, the docs built strictly; changes nothing
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache

docs: venv ## the documentation as a site in build/site; a broken link or anchor fails
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(PY) -m mkdocs build --strict

fix: venv ## what ruff can fix
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

bench-comm: test-setup bench-images ## only the bars of the collectives, against their peers
	@$(PY) -m benchmarks $(BENCH_COMM)

bench-scale: test-setup ## the core between thousands of simulated nodes; 15 minutes, and continued where it was stopped
	@$(PY) -m benchmarks scale

bench-convergence: test-setup bench-images ## that ranks learn what one process learns, over 5 seeds
	@$(PY) -m benchmarks convergence

bench-images: test-setup
	@for image in $(BENCH_IMAGES); do .venv/bin/fairlead build "$$image" || exit; done

bench: images bench-images ## measure every bar; exit 1 when one is missed
	@$(PY) -m benchmarks

dist: venv ## sdist and wheel in dist/, the wheel with the native libraries for both processors
	@$(PY) -m build

EXTRAS := build native report setup data ranks bridge tune notebook serve objects docs dev
lock: ## pin the development environment: requirements-dev.lock
	@python3 -m venv build/lock && build/lock/bin/pip install -q uv
	@build/lock/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
	    --custom-compile-command "make lock" --upgrade $(EXTRAS:%=--extra %) -o requirements-dev.lock pyproject.toml

kernel-lock: venv ## pin what `fairlead notebook --with-kernel` lays over images
	@python3 -m venv build/lock && build/lock/bin/pip install -q uv
	@$(PY) -m tools.kernel_lock build/lock/bin/uv

native: setup build/native/whole ## the image's Python packages on this machine, from the same lock

build/native/whole: recipes/tensorflow/lock.toml
	@$(PY) -m venv --clear build/native
	@.venv/bin/fairlead recipe requirements tensorflow >build/native/requirements.txt
	@build/native/bin/python3 -m pip install -q --no-deps --require-hashes -r build/native/requirements.txt
	@touch $@

VALIDATE := .venv/bin/fairlead validate --native build/native/bin/python3 --ranks 1,2

image-tensorflow:
	@.venv/bin/fairlead build tensorflow

validate: test-setup ## is this machine as fast as it should be? native and in the container, by mpiexec and in a Slurm
	@$(MAKE) --no-print-directory -j2 build/native/whole image-tensorflow
	@$(VALIDATE),4 -o fairlead-validation; code=$$?; [ $$code -eq 125 ] || exit $$code
	@$(PY) -m tests.system.slurm $(VALIDATE) -o fairlead-validation-slurm; code=$$?; [ $$code -eq 125 ] || exit $$code

clean: ## the environment and the tools' caches; images and Apptainer stay in the XDG folders
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist fairlead-report
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

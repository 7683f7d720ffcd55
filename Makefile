# PYTHON: the interpreter to build with (3.11-3.13; default: the first found).
# TORCH_INDEX: where CPU wheels of torch are looked for besides pip's own index.
export PYTHON TORCH_INDEX
# Else every process that a test starts would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: help demo test test-fast lint-and-test-fast engines chaos lint lock docs film clean environments packages-demo packages-test

help:
	@echo "make demo       four SSH nodes on this machine and the page, ready to launch"
	@echo "make test       every test but those of engines and chaos (about 40 minutes on two slow cores, installation included)"
	@echo "make test-fast  unit and contract tests (about a minute)"
	@echo "make engines    every engine really trains on CPU; the formulas agree with real modules (an hour)"
	@echo "make chaos      every fault in network namespaces, and a table of what came of it (16 minutes; needs root)"
	@echo "make lint       ruff and mypy; eslint, tsc and unit tests of the page's scripts"
	@echo "make lock       lock the version and hashes of every package in requirements/*.txt, from pyproject.toml and *.in"
	@echo "make docs       the parameter reference, the causes and the models, in docs/, from the code"
	@echo "make film       docs/demo.webm and docs/demo.gif, recorded from the demo (needs chromium and ffmpeg)"
	@echo "make clean      removes both environments and the caches"

demo: packages-demo environments
	@.venv/bin/megaboard demo

# Three workers on two cores, because tests of Slurm, Docker and silent peers mostly wait.
test: packages-test environments lint-and-test-fast
	.venv/bin/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "(ui or e2e or worst or slow) and not engines" tests tests/chaos

# Both at once: lint works on one core.
lint-and-test-fast: .venv/.ready
	@$(MAKE) --no-print-directory lint & lint=$$!; \
	$(MAKE) --no-print-directory test-fast; fast=$$?; wait $$lint && exit $$fast

# Three workers on two cores, because contract tests wait for sshd.
test-fast: .venv/.ready
	.venv/bin/pytest -n 3 --dist loadfile -m "not ui and not e2e and not chaos and not slow and not engines"

engines: packages-test environments .venv-node/extra/.ready
	.venv/bin/pytest -n 2 --dist loadfile -m engines tests --durations=20

chaos: packages-test environments
	.venv/bin/pytest tests/chaos -m chaos -n 3 --dist worksteal --durations=5

lint: .venv/.ready
	@tools/check_scripts.sh
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

lock: .venv/.ready
	tools/lock.sh

docs: .venv/.ready
	.venv/bin/python -m tools.write_reference
	.venv/bin/python -m tools.write_causes
	.venv/bin/python -m tools.write_models

film: packages-test environments
	.venv/bin/python -m tools.record_demo

# Both at once: pip works on one core.
environments:
	@$(MAKE) --no-print-directory .venv-node/.ready & node=$$!; \
	$(MAKE) --no-print-directory .venv/.ready; page=$$?; wait $$node && exit $$page

.venv/.ready: pyproject.toml requirements/dev.txt
	python=$$(tools/python.sh) && "$$python" -m venv .venv
	.venv/bin/python -m pip install --quiet --no-compile --require-hashes -r requirements/dev.txt
	.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv-node/.ready: requirements/torch.txt requirements/node.txt requirements/node-no-deps.txt app/demo/node_environment.py
	@rm -f $@
	python=$$(tools/python.sh) && "$$python" -m app.demo.node_environment .venv-node

.venv-node/extra/.ready: .venv-node/.ready requirements/engines.txt requirements/swift.txt requirements/newer.txt tools/engine_packages.sh
	tools/engine_packages.sh .venv-node

packages-demo packages-test: packages-%:
	@tools/debian-packages.sh $*

clean:
	rm -rf .venv .venv-node node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find app backend tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

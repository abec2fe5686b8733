# make demo   the main job: from an ONNX file to a placement that runs on two devices
# make test   what to run before a change is handed in: minutes
# make test-all   everything that CI checks: with the tests that take longer
# make figures-smoke  every command that docs/reference/results.md names, at its smallest size: minutes
# make lanes  the core of the tests on older releases of OpenVINO
# make llm    language models with optimum-intel and openvino.genai, in an environment of their own
# make wheels wheels to publish, in dist: for each Python from 3.10 on that is here, without containers
# make try-wheels  those in dist, installed from an index without a compiler: pip install, doctor, the quick start
# make release     tests, wheels and their checks; the last line is the command that publishes
# make docs   the documentation site, in build/site
# make fuzz   hostile files and arrays, for FUZZ_SECONDS each (an hour); a quarter of a minute of it is in make test
# All but clean make their own environment in .venv with the interpreter that PYTHON names, and can be run again at any time.

PYTHON ?= python3
CXX ?= g++
# Only the tests need torch (for models from transformers). PyPI's Linux build of it brings CUDA, gigabytes; to avoid that:
# make test TORCH_OPTIONS="--index-url https://download.pytorch.org/whl/cpu"
TORCH_OPTIONS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt

CPP_CORE := $(wildcard cpp_ext/*.cpp cpp_ext/*.hpp)
CPP_FUZZ := cpp_ext/tests/fuzz.cpp
CPP_FUZZ_MAIN := cpp_ext/tests/fuzz_main.cpp
CPP_TESTS := $(filter-out cpp_ext/tests/fuzz%,$(wildcard cpp_ext/tests/*.cpp))
CPP_TEST_HEADERS := $(wildcard cpp_ext/tests/*.hpp)
RIG_LAYER := tests/rig/gpu_layer.c
# Without the bindings: the tests of the native core are a plain program, so that sanitizers see all of it.
CPP_TESTED := $(filter-out $(wildcard cpp_ext/bindings*.cpp),$(filter %.cpp,$(CPP_CORE))) transformations/src/json.cpp
CPP_SANITIZED := $(CPP_TESTED:%.cpp=build/sanitized/%.o)
CPP_SANITIZED_TESTS := $(CPP_TESTS:%.cpp=build/sanitized/%.o)
CPP_THREADS := $(patsubst %.cpp,build/threads/%.o,$(CPP_TESTED) $(CPP_TESTS))
# What is compiled against OpenVINO.
CPP_OPENVINO := $(shell find transformations samples/cpp tests/cpp -name '*.[ch]pp')
PACKAGE := setup.py pyproject.toml MANIFEST.in $(wildcard startup/*ov_hsdag*) $(CPP_CORE) $(shell find transformations -type f) \
           $(shell find ov_hsdag -name '*.py' -o -name '*.pyi' -o -name '*.json' -o -path '*/report/*' -o -path '*/policies/*')
PYTHON_FILES := setup.py $(wildcard startup ov_hsdag research tests samples benchmarks tools) docs/mkdocs_hooks.py docs/python_reference.py
SANITIZE := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

DEMO := build/demo
ONE_CORE := INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32

# Targets make the environment that others use, one after the other, but where it is there or not needed.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.PHONY: demo test test-slow test-all figures-smoke lanes llm docs wheels try-wheels release lint format native-test native-threads pytest tree rig fuzz clean

demo: export PATH := $(CURDIR)/$(BIN):$(PATH)
demo: export OV_HSDAG_VIRTUAL_DEVICES = $(DEMO_DEVICES)
demo: $(VENV)/.installed $(VENV)/.demo
	rm -rf $(DEMO)
	mkdir -p $(DEMO)
	python samples/python/export_resnet50.py $(DEMO)/resnet50.onnx
	ovc $(DEMO)/resnet50.onnx --placement HETERO:CPU_A,CPU_B --placement_objective throughput \
	    --output_model $(DEMO)/resnet50.xml
	python samples/python/throughput.py $(DEMO)/resnet50.xml HETERO:CPU_A,CPU_B CPU_A CPU_B

# Two devices of one core each, whatever the machine has.
DEMO_DEVICES := CPU_A:$(ONE_CORE);CPU_B:$(ONE_CORE)

test:
	$(MAKE) SIDE_BY_SIDE= tree
	$(MAKE) --jobs 2 SIDE_BY_SIDE=1 lint pytest

test-all: test native-test test-slow native-threads

# What `make test` leaves out: the tests of more than a few seconds (marked "slow"). Three processes keep two cores busy, as
# many of them wait: for trials, or for programs to end.
test-slow: tree
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist loadfile --max-worker-restart 0 -m "slow and not alone"
	$(BIN)/pytest -m "slow and alone"
	$(MAKE) figures-smoke

figures-smoke: tree
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.figures --run

# Two processes, for two cores (torch would start a thread for each core in both).
# Where a process dies, the run ends: pytest-xdist would wait forever for tests that it had taken.
pytest: tree
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --max-worker-restart 0 -m "not slow"

# Tests, and the commands that they start here, find the package of the tree before the installed one: it gets the
# wheel's native core and extension library. The .pth file and the console scripts are the wheel's.
tree: $(VENV)/.test $(VENV)/.installed
	rm -f ov_hsdag/_native*.so
	cp $(VENV)/lib/python*/site-packages/ov_hsdag/_native*.so ov_hsdag/
	rm -rf ov_hsdag/lib
	cp -r $(VENV)/lib/python*/site-packages/ov_hsdag/lib ov_hsdag/

lint: $(VENV)/.test
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/ruff format --check $(PYTHON_FILES)
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP_CORE) $(wildcard cpp_ext/tests/*.cpp) $(CPP_OPENVINO) $(RIG_LAYER)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(wildcard .github/workflows/*.yml)
	$(BIN)/hadolint Dockerfile

format: $(VENV)/.test
	$(BIN)/ruff check --fix $(PYTHON_FILES)
	$(BIN)/ruff format $(PYTHON_FILES)
	$(BIN)/clang-format -i $(CPP_CORE) $(wildcard cpp_ext/tests/*.cpp) $(CPP_OPENVINO) $(RIG_LAYER)

# OpenVINO's GPU plugin without a GPU, see CONTRIBUTING.md. The tests make it, too, where it is not there.
rig: $(VENV)/.created
	$(BIN)/python tests/rig/setup

native-test:
	$(MAKE) --jobs 2 SIDE_BY_SIDE=1 build/native-test build/native-fuzz
	build/native-test
	build/native-fuzz 10

# The same tests for races of threads, which another sanitizer finds.
native-threads:
	$(MAKE) --jobs 2 SIDE_BY_SIDE=1 build/native-threads
	build/native-threads

NATIVE_CXX = $(CXX) -std=c++20 -Wall -Wextra -Werror -Icpp_ext
SANITIZED_CXX = $(NATIVE_CXX) $(SANITIZE)
# Without a warning that GCC 12 gives of std::optional there.
THREADED_CXX = $(NATIVE_CXX) -O1 -g -fsanitize=thread -Wno-maybe-uninitialized

build/sanitized/%.o: %.cpp $(CPP_CORE) $(CPP_TEST_HEADERS)
	mkdir -p $(@D)
	$(SANITIZED_CXX) -c $< -o $@

build/threads/%.o: %.cpp $(CPP_CORE) $(CPP_TEST_HEADERS)
	mkdir -p $(@D)
	$(THREADED_CXX) -c $< -o $@

build/native-threads: $(CPP_THREADS)
	$(THREADED_CXX) $(CPP_THREADS) -pthread -o $@

build/native-test: $(CPP_SANITIZED) $(CPP_SANITIZED_TESTS)
	$(SANITIZED_CXX) $(CPP_SANITIZED_TESTS) $(CPP_SANITIZED) -pthread -o $@

build/native-fuzz: $(CPP_SANITIZED) $(CPP_FUZZ) $(CPP_FUZZ_MAIN)
	$(SANITIZED_CXX) $(CPP_FUZZ) $(CPP_FUZZ_MAIN) $(CPP_SANITIZED) -pthread -o $@

# The same with libFuzzer, which follows what inputs reach.
build/native-libfuzzer: $(CPP_CORE) $(CPP_FUZZ)
	mkdir -p build
	clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Icpp_ext \
	    $(CPP_TESTED) $(CPP_FUZZ) -pthread -o $@

# FUZZ_SECONDS of each kind of file, two at once, and of the native core. Atheris, which follows what inputs reach, and
# clang are used where they are there (pip install atheris; apt-get install clang). What is found lies in build/fuzz.
FUZZ_SECONDS ?= 3600
FUZZ_NATIVE := $(if $(shell command -v clang++),build/native-libfuzzer,build/native-fuzz)

fuzz: tree $(FUZZ_NATIVE)
	mkdir -p build/fuzz/native
	$(if $(filter %libfuzzer,$(FUZZ_NATIVE)),\
	    $(FUZZ_NATIVE) -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/ build/fuzz/native,\
	    $(FUZZ_NATIVE) $(FUZZ_SECONDS))
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --jobs 2

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

# The package as users get it: a wheel. What is compiled already lies in build/compiled (see setup.py).
$(VENV)/.installed: $(PACKAGE) constraints.txt $(VENV)/.created
	$(PIP) .
	touch $@

$(VENV)/.demo: constraints.txt $(VENV)/.created
	$(PIP) onnx
	touch $@

# Our compiler's warnings are errors in the tests, and in them alone (see setup.py).
test test-slow test-all pytest lint format: export OV_HSDAG_WERROR := 1

$(VENV)/.test: pyproject.toml constraints.txt $(VENV)/.created
	$(PIP) torch $(TORCH_OPTIONS)
	$(PIP) openvino  # before the package: setup.py compiles the extension library against it
	$(PIP) ".[test]"
	touch $(VENV)/.installed $@

# The core of the tests on other releases of OpenVINO, each in an environment of its own; minutes.
LANES := 2024.6 2025.0 2025.4
lanes: export PYTHON := $(PYTHON)
lanes:
	set -e; for release in $(LANES); do tests/lanes/run $$release; done

# PYTHONS names interpreters that are not python3.10 to python3.14 on PATH.
wheels:
	$(PYTHON) tools/wheels/build.py $(PYTHONS)

# CHROOT: a folder with a system without compilers, which has the interpreters that PYTHONS names.
try-wheels:
	build/wheels/tools/bin/python tools/wheels/try_wheel.py --index dist $(if $(CHROOT),--root $(CHROOT)) $(PYTHONS)

# CHECKED=1 where CI has passed on this commit: nothing is tested again.
release:
	$(PYTHON) tools/wheels/release.py $(if $(CHECKED),--checked) $(PYTHONS)

# All families of tests/llm/families.py, and gigabytes to download.
llm: export PYTHON := $(PYTHON)
llm: export TORCH_OPTIONS := $(TORCH_OPTIONS)
llm:
	tests/llm/run

# What is wrong with a link or an anchor is an error (--strict; --quiet would turn that off). The notice that is turned off is of
# the end of Material for MkDocs in May 2027.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict
	@echo "build/site/index.html: its links work where it is opened as a file; its search needs python -m http.server --directory build/site"

# The package is there, and is not built again: this installs what its extra names.
$(VENV)/.docs: $(VENV)/.installed
	$(PIP) "ov-hsdag[docs]"
	touch $@

clean:
	rm -rf $(VENV) build

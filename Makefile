# SPDX-License-Identifier: Apache-2.0
# Thin wrappers around scripts/setup, CMake and ctest; `make help` lists them. Everything lands in build/ (or build-NAME/).

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Suites wait more than they compute.
TEST_JOBS ?= $(shell echo $$((3 * $(JOBS))))
# Where an ordinary user may write, too.
PREFIX ?= $(if $(filter 0,$(shell id -u)),/usr/local,$(HOME)/.local)
DESTDIR ?=
FUZZ_SECONDS ?= 60
RUN = build/bin/ferryrun -n 4 --domains 2 --

MAKEFLAGS += --no-print-directory
export JOBS
.DEFAULT_GOAL := help
.PHONY: help setup build demo check soak gpu gpu-report bundle install deb asan tsan debug fuzz models docs clean

help: ## this list
	@echo "Ferry: collective communication for the GPUs and CPUs of a server. make TARGET:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install the packages that are missing (apt; elsewhere it names them and stops)
	@scripts/setup

build: setup ## configure and build into build/, commands in build/bin
	@scripts/build default

demo: setup ## two routers and four ranks train a digit classifier, then a small benchmark table
	@scripts/build default commands
	$(RUN) build/bin/ferry-digits
	build/bin/ferry-perf allreduce -b 1K -e 4M -f 16

check: build ## build and run every test
	ctest --preset default -j $(TEST_JOBS)

gpu: build ## the tests that need GPUs, and a table of their results
	@scripts/gpu-check

gpu-report: build ## measures what docs/performance.md tells of GPUs, into build/gpu-report/
	@scripts/gpu-report build/gpu-report

bundle: build ## build/bundle: what a bare GPU machine needs to run the GPU tests and the benchmarks
	@scripts/bundle

soak: build ## kills of routers and ranks by the thousand, scribbling ranks, jobs that come and go: an hour
	ctest --preset soak -j $(JOBS)

debug: setup ## build without optimization into build-debug/
	@scripts/build debug

asan: setup ## every suite once under AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan/
	@scripts/build asan
	ctest --preset asan -j $(TEST_JOBS)

tsan: setup ## the tests of ipc, engine and lanes under ThreadSanitizer, in build-tsan/
	@scripts/build tsan
	start=$$(scripts/tsan-prefix) && $$start ctest --preset tsan -j $(TEST_JOBS)

fuzz: ## libFuzzer over programs, plans, messages, submissions and names, FUZZ_SECONDS (60) each, in build-fuzz/
	@scripts/setup fuzz
	@scripts/build fuzz fuzzers
	@scripts/fuzz build-fuzz $(FUZZ_SECONDS)

models: ## check the models of the protocols in shared memory with spin
	@scripts/setup models
	@scripts/check-models

docs: ## man pages (section 3) and HTML of the API from ferry.h, in build-docs/
	@scripts/setup docs
	@scripts/api-reference build-docs

install: ## library and commands alone, to PREFIX (/usr/local; of an ordinary user ~/.local), under DESTDIR if given
	@scripts/setup install
	@if [ -f build/CMakeCache.txt ]; then tree=build; scripts/build default commands; \
	else tree=build-install; scripts/build install; fi && \
	DESTDIR="$(DESTDIR)" cmake --install $$tree --prefix "$(PREFIX)" >/dev/null

deb: ## Debian packages libferry0, libferry-dev and ferry-tools, in build-deb/
	@scripts/setup deb
	@scripts/build deb
	@if command -v doxygen >/dev/null; then scripts/api-reference build-docs; \
	else echo "no doxygen, so libferry-dev has no man pages of the API (make docs)"; fi
	@cd build-deb && cpack
	@ls build-deb/*.deb

clean: ## remove build directories
	rm -rf build build-debug build-asan build-tsan build-fuzz build-install build-deb build-docs

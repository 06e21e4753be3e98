# `make demo` and `make test` do all their own set-up. See CONTRIBUTING.md for the rest.
.PHONY: setup demo test lint unit soak bench docs requirements clean
PY := .venv/bin/python
# `make test` fails if fewer Spark tests than this passed
MIN_SPARK_TESTS := 290

setup:
	@scripts/setup.sh

demo: setup
	$(PY) -m durable_shuffle.jobs.cli demo $(ARGS)

test: lint
	$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --min-spark-tests=$(MIN_SPARK_TESTS) $(ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

# without Spark and without the S3 server: seconds, for the inner loop
unit: setup
	$(PY) -m pytest -m "not spark and not s3 and not soak and not live" $(ARGS)

# the long families whole; resumes where it stopped; writes docs/soak.md
soak: setup
	$(PY) scripts/soak.py $(ARGS)

# ARGS may name files of bench/; without one all of them run
bench: setup
	$(PY) -m pytest $(if $(findstring bench/,$(ARGS)),,bench) --benchmark-enable --benchmark-only -m "" -o faulthandler_timeout=0 $(ARGS)

# the documentation as a site, in site/; fails on a warning
docs: setup
	.venv/bin/zensical build --strict --clean

# writes docs/requirements.md from the marks on the tests
requirements: setup
	$(PY) scripts/requirements.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build site .cache

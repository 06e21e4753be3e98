# `make demo` and `make test` do all their own set-up; the demo needs less. See CONTRIBUTING.md for the rest.
.PHONY: setup demo test table-formats lint unit soak bench bench-baseline dist docs compatibility requirements house clean
PY := .venv/bin/python
CLASSES := .venv/spark-classes.jsa
# `make test` fails if fewer Spark tests than this passed
MIN_SPARK_TESTS := 290

setup:
	@scripts/setup.sh

# halves the time that the JVMs of the tests take to start
$(CLASSES): scripts/class_archive.py pyproject.toml | setup
	@echo "setup: writing an archive of Spark's classes" >&2
	@$(PY) scripts/class_archive.py $@

demo:
	@scripts/setup.sh demo
	$(PY) -m durable_shuffle.jobs.cli demo $(ARGS)

# three processes keep two cores busy: JVMs that start and drivers that were killed are waited for
test: setup
	@$(MAKE) --no-print-directory -j 3 lint $(CLASSES) table-formats
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --min-spark-tests=$(MIN_SPARK_TESTS) $(ARGS)

# jars of Delta, Iceberg and Spark's tests, and a PySpark for the former, once; without them their
# tests are skipped, in CI they fail
table-formats: setup
	@$(PY) scripts/table_formats.py || echo "setup: Delta and Iceberg cannot be fetched" >&2
	@$(PY) scripts/test_jars.py || echo "setup: jars of Spark's tests and of HDFS cannot be fetched" >&2

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	find jobs tests -name '*.java' | xargs .venv/bin/clang-format --dry-run --Werror
	.venv/bin/mypy
	.venv/bin/lint-imports

# without Spark and without the S3 server: seconds, for the inner loop
unit: setup
	$(PY) -m pytest -m "not spark and not s3 and not soak and not live" $(ARGS)

# the long families whole; resumes where it stopped; writes docs/internals/soak.md
soak: setup
	$(PY) scripts/soak.py $(ARGS)

# within 20 minutes; writes docs/benchmarks.md and docs/pictures. BENCH_FULL=1 takes the long ones too, for
# hours. ARGS may name files of bench/suite/; without one all of them run. `make bench-baseline` saves what
# later runs are compared with.
BASELINE := bench/suite/baseline
BENCH := $(PY) -m pytest --benchmark-enable --benchmark-only --benchmark-storage=$(BASELINE) --benchmark-group-by=group -m "" -o faulthandler_timeout=0
bench: setup
	$(BENCH) $(if $(findstring bench/,$(ARGS)),,bench/suite) $(if $(wildcard $(BASELINE)/*/*.json),--benchmark-compare=0001,) $(ARGS)

bench-baseline: setup
	rm -rf $(BASELINE)
	$(BENCH) bench/suite --benchmark-save=baseline $(ARGS)

# the Spark tests on other versions of PySpark and Python; writes docs/internals/compatibility.md
compatibility: setup
	$(PY) scripts/compatibility.py $(ARGS)

# the documentation as a site, in site/; fails on a warning
docs: setup
	$(PY) scripts/cli_page.py
	.venv/bin/zensical build --strict --clean

# wheel and source archive, in dist/; then installs each with each extra and runs README's program, for about a
# quarter of an hour. ARGS may name extras
dist: setup
	rm -rf dist
	$(PY) -m build --no-isolation --outdir dist .
	$(PY) scripts/installed.py dist $(ARGS)

# writes docs/internals/requirements.md from the marks on the tests
requirements: setup
	$(PY) scripts/requirements.py

# the package as the wheel lays it out, in build/house, for tools that follow no links; which folder
# imports which
house: setup
	@$(PY) scripts/house.py

clean:
	rm -rf .venv .venv-compat-* .venv-airflow .venv-dagster .venv-dbt .venv-jupyter .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build site .cache

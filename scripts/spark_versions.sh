#!/bin/sh
# Runs the tests of whole queries on other versions of PySpark, each in an environment of its own:
#   scripts/spark_versions.sh 4.0 4.1 4.2
# Safe to repeat. What a version lacks is said by jobs/plan_cut/probe.py.
set -eu
cd "$(dirname "$0")/.."
tests="tests/spark/test_query.py tests/spark/test_query_plans.py tests/spark/test_query_property.py"
failed=""
for version in "$@"; do
    folder=".venv-pyspark-$version"
    [ -x "$folder/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$folder"
    "$folder/bin/python" -m pip install -q --disable-pip-version-check -e '.[demo,s3]' \
        "pyspark[connect]==$version.*" 'pytest>=9' 'pytest-timeout>=2.3' 'pytest-benchmark>=5' \
        'hypothesis>=6.100'
    # shellcheck disable=SC2086 # a list of files
    "$folder/bin/python" -m pytest -q $tests || failed="$failed $version"
done
[ -z "$failed" ] || { echo "failed on PySpark$failed" >&2; exit 1; }

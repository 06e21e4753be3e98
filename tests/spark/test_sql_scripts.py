"""SQL scripts of a warehouse, killed at a random place, started again: the tables of plain Spark.

Each runs by `durable-shuffle run --transparent NAME.sql`, which starts the killed driver again.
"""

import random
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import table_session
from sql_scripts import Script, run_and_kill, scripts, write_inputs, write_settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200)]
TABLES_DRIVER = Path(__file__).parent / "programs" / "tables_driver.py"
ALL = scripts()
SAMPLE = [Script("history.merge.sql", "iceberg")]


def names(wanted: list[Script]) -> list[str]:
    return [f"{script.file}:{script.format}" for script in wanted]


def differing(wanted: list[Script], programs: Any, folder: Path, seed: int) -> list[str]:
    """Return what is wrong of all scripts, as lines."""
    _, jars, environment = table_session.found()
    inputs = write_inputs(folder / "inputs")
    settings = runpy.run_path(str(TABLES_DRIVER))["settings"]
    confs = {}
    for side in ("plain", "ours"):
        place = folder / side
        conf = write_settings(place / "conf", settings(place, jars))
        confs[side] = {**environment, "SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"}
    arguments = (inputs, *names(wanted))
    plain = programs.run("sql_scripts_driver", "plain", *arguments, env=confs["plain"])
    drawn = random.Random(seed)
    wrong, kills = [], 0
    for script in wanted:
        place = folder / script.name
        place.mkdir()
        (place / f"{script.name}.sql").write_text(script.text(inputs))
        ended = run_and_kill(
            place / f"{script.name}.sql", place / "root", place, confs["ours"], drawn
        )
        print(script.name, ended.killed, ended.code, flush=True)
        kills += bool(ended.killed)
        if ended.code or not ended.killed:
            wrong.append(f"{script.name}: code {ended.code} {ended.killed!r} {ended.said[-2000:]}")
        # a stage's folder is NAME-FINGERPRINT-INCARNATION
        sealed = [p.parent.name.rsplit("-", 1)[0] for p in (place / "root").glob("*/*/index")]
        wrong += [f"{script.name}: stored twice: {p}" for p, n in Counter(sealed).items() if n > 1]
    ours = programs.run("sql_scripts_driver", "read", *arguments, env=confs["ours"])
    for name, tables in plain.items():
        for table, rows in tables.items():
            assert rows, f"{name}.{table} has no rows: it proves nothing"
            found = ours[name].get(table)
            if found != rows:
                wrong.append(f"{name}.{table}: {str(rows)[:300]} {str(found)[:300]}")
    return wrong


@pytest.mark.soak
def test_a_sample_of_scripts(programs: Any, tmp_path: Path, seed: int) -> None:
    """One, with CREATE OR REPLACE, MERGE and INSERT."""
    assert differing(SAMPLE, programs, tmp_path, seed) == []


@pytest.mark.soak
def test_all_scripts(programs: Any, tmp_path: Path, seed: int) -> None:
    """All scripts in all formats."""
    assert len(ALL) >= 40
    wrong = differing(ALL, programs, tmp_path, seed)
    assert not wrong, "\n\n".join(wrong)

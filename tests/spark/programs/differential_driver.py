"""A second driver of random programs: `differential_driver.py TABLES ROOT SEED PROGRAM...`.

It creates the programs again from their names and runs them over data that another process stored.
One JSON line has their rows, and the stages in which a producer ran.
"""

import json
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[2] / "support"


def main() -> None:
    sys.path.insert(0, str(SUPPORT))
    from differential import Family, carry_out
    from local_spark import local_spark
    from random_programs import random_program
    from random_steps import LEAVES, STEPS

    tables, root, seed, *names = sys.argv[1:]
    family = Family(local_spark(), Path(tables), root)
    session, store = family.driver(seed, job=seed)
    rows, ran = [], []
    for name in names:
        before = len(store.report().stages)
        outcome = carry_out(random_program(name, STEPS, LEAVES), session, store)
        rows.append(sorted(outcome.rows))
        stages = store.report().stages[before:]
        ran.append([f"{name}: {stage.why}" for stage in stages if stage.map_tasks_run])
    print(json.dumps({"rows": rows, "ran": ran}))


main()

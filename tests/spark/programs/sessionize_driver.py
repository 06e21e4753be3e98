"""The sessionize job, which stops on purpose: `sessionize_driver.py SLOT STOPPED ARGUMENT…`.

Consumers stop before they write slot SLOT of their logs, and create the file STOPPED. -1: none.
The arguments are those of `python -m durable_shuffle.bench.sessions.sessionize`.
"""

import runpy
import sys

import stopping_storage

slot, stopped = int(sys.argv[1]), sys.argv[2]
del sys.argv[1:3]
if slot >= 0:
    stopping_storage.install(slot, stopped)
runpy.run_module("durable_shuffle.bench.sessions.sessionize", run_name="__main__")

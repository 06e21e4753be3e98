"""A node of one machine: `kubelet.py API_URL FOLDER`. IMAGE is the environment of pods, as JSON.

Runs the pods of an API server until SIGTERM, which ends them, too.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from mirror import KINDS, connected
from pods import Pods


async def main(url: str, folder: str) -> None:
    """Follow the API server and run what it says."""
    cluster = connected(url)
    work = asyncio.current_task()
    assert work is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as tasks:
            for kind in KINDS:
                tasks.create_task(cluster.follow(kind))
            tasks.create_task(Pods(cluster, Path(folder), json.loads(os.environ["IMAGE"])).run())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

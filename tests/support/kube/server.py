"""Kubernetes on one machine: `server.py FOLDER`. IMAGE is the environment of pods, as JSON.

Prints the API's URL and serves until SIGTERM, which ends all pods, too.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from aiohttp import web
from api import Api
from objects import Objects
from pods import Pods


async def main(folder: str) -> None:
    """Serve."""
    objects = Objects()
    application = web.Application(client_max_size=1 << 26)
    application.router.add_route("*", "/{path:.*}", Api(objects).answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    pods = asyncio.create_task(Pods(objects, Path(folder), json.loads(os.environ["IMAGE"])).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pods.cancel)
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.wait([pods])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

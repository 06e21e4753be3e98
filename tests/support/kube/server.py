"""An API server on loopback, in memory: prints its URL and serves until it is killed."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from aiohttp import web
from api import Api
from objects import Objects


async def main() -> None:
    """Serve."""
    application = web.Application(client_max_size=1 << 26)
    application.router.add_route("*", "/{path:.*}", Api(Objects()).answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())

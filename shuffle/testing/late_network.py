"""A network that answers late, for tests and benchmarks: a proxy in front of a server here.

What a client sends arrives a fixed time later, as over the round trip of a real object store. The
bandwidth is not limited, and the answers are not late, so each request costs one delay. The proxy
is a process of its own, since its CPU must not count as that of the process that measures. It must
never listen on an outer address. It ends when the pipe from its owner closes.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

_HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 18
_HELD_CHUNKS = 64
"""Most chunks on their way in one direction of a connection."""


class LateNetwork(NamedTuple):
    """How to reach the server behind it."""

    endpoint: str
    process_id: int


@contextmanager
def late_network(endpoint: str, seconds: float) -> Iterator[LateNetwork]:
    """Run a proxy in front of `endpoint`.

    Args:
        endpoint: such as "http://127.0.0.1:8333".
        seconds: what is sent to the server arrives so much later.
    """
    target = urlsplit(endpoint)
    command = [sys.executable, __file__, str(target.hostname), str(target.port), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield LateNetwork(f"{target.scheme}://{_HOST}:{port}", process.pid)
        finally:
            process.kill()


async def _carry(source: asyncio.StreamReader, to: asyncio.StreamWriter, seconds: float) -> None:
    """Carry bytes from one side to the other, each chunk so much later."""
    clock = asyncio.get_running_loop().time
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD_CHUNKS)

    async def take() -> None:
        while True:
            try:
                data = await source.read(_CHUNK_BYTES)
            except OSError:  # a client that was killed
                data = b""
            await held.put((clock() + seconds, data))
            if not data:
                return

    taking = asyncio.create_task(take())
    with suppress(ConnectionError):
        while True:
            due, data = await held.get()
            if due > clock():
                await asyncio.sleep(due - clock())
            if not data:
                break
            to.write(data)
            await to.drain()
        if to.can_write_eof():
            to.write_eof()
    taking.cancel()


async def _serve(host: str, port: int, seconds: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(
                _carry(reader, server_writer, seconds),
                _carry(server_reader, writer, 0),
                return_exceptions=True,
            )
        finally:
            server_writer.close()
            writer.close()

    server = await asyncio.start_server(connected, _HOST, 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))

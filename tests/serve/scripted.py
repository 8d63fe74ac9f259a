#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An upstream whose every step is known, in place of a llama-server: `quire serve --kv none --store none -- tests/serve/scripted.py`.

GET /events?n=500&ms=4   a stream of n events, one each ms milliseconds; an event has the time at which it was written (CLOCK_MONOTONIC, ns)
GET /hold                a stream that has one event and stays open
GET anything else        {"status":"ok"}
"""
import asyncio
import sys
import time
from urllib.parse import parse_qs, urlsplit

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event():
    return chunk(b"data: {\"ns\":%d}\n\n" % time.monotonic_ns())


async def serve(reader, writer):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        target = urlsplit(head.split(b" ", 2)[1].decode())
        asked = {name: float(values[0]) for name, values in parse_qs(target.query).items()}
        if target.path == "/events":
            writer.write(HEAD)
            await writer.drain()
            for _ in range(int(asked.get("n", 100))):
                await asyncio.sleep(asked.get("ms", 4) / 1e3)
                writer.write(event())
                await writer.drain()
            writer.write(chunk(b""))
        elif target.path == "/hold":
            writer.write(HEAD + event())
            await writer.drain()
            await reader.read()  # until the other side goes
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{\"status\":\"ok\"}")
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main():
    host = sys.argv[sys.argv.index("--host") + 1]
    async with await asyncio.start_unix_server(serve, host, backlog=1024) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

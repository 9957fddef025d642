"""Starts a program and follows its tape; what it has read there goes to a file, as acknowledged."""

import asyncio
import json
import os
import sys
import time


def main():
    request = json.loads(sys.argv[1])
    acked = os.open(request["acked"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if request["way"] == "fresh":
        blocking(request, acked)
    else:
        asyncio.run(with_zygote(request, acked))


def announce(execution_id):
    os.write(1, execution_id.encode() + b"\n")


def alone(engine, execution_id):
    """Wait until its keeper is gone, so that whoever clears the tape does it by itself."""
    from tenuto.stores.tape import is_kept

    while is_kept(engine.project.folder(execution_id)):
        time.sleep(0.001)


def blocking(request, acked):
    """Follows without ever settling: a keeper's death is left for others to find."""
    from tenuto.engine.blocking import BlockingEngine, sleep
    from tenuto.engine.watch import is_output
    from tenuto.engine.work import Options

    engine = BlockingEngine.open_here()
    work = engine.command(request["argv"], Options(detached=True))
    execution_id, sock = engine.start(work)
    announce(execution_id)
    size = 0
    with engine.watch(execution_id, -1, sock) as watch:
        while True:
            for frame in watch.news():
                if is_output(frame):
                    size += os.write(acked, frame.body)
            if watch.adrift or not watch.execution.live:
                break
            if 0 < request.get("clear_at", 0) <= size:
                request["clear_at"] = 0
                engine.clear(execution_id)
            sleep(watch, None)
    if request.get("clear_after"):
        alone(engine, execution_id)
        engine.clear(execution_id)
    engine.close()


async def with_zygote(request, acked):
    """Follows through the public engine, which settles what it finds dead."""
    from tenuto import Engine

    async with Engine() as engine:
        execution_id = await engine.start(command=request["argv"])
        announce(execution_id)
        size = 0
        async for chunk in engine.follow(execution_id):
            size += os.write(acked, chunk.data)
            if 0 < request.get("clear_at", 0) <= size:
                request["clear_at"] = 0
                await engine.clear(execution_id)
        if request.get("clear_after"):
            alone(engine._engine, execution_id)
            await engine.clear(execution_id)


main()

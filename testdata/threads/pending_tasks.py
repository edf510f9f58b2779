"""An asynchronous server starts a task for each request that waits for a client's acknowledgement, which half of the clients never send.

Truth: each request keeps, in its task's frame, a response of 16 x 4096 floats, 262,144 B; every second one for ever: 131,072 B a request on the average.
Line: `response = model(...)` in answer. Holder: `waiting[*]`, by its task and coroutine. --fixed: a task gives up after 50 ms. Inference.
"""

import asyncio
import sys

import torch
from pace import Pace
from torch import nn

waiting = {}


async def answer(model, number, acknowledged):
    with torch.no_grad():
        response = model(torch.rand(16, 64, device="cuda"))
    try:
        await asyncio.wait_for(acknowledged.wait(), 0.05 if "--fixed" in sys.argv else None)
    except asyncio.TimeoutError:
        pass
    waiting.pop(number)
    return response.shape


async def serve():
    model, pace = nn.Linear(64, 4096).cuda(), Pace(0)
    running = True
    while running:
        acknowledged = asyncio.Event()
        waiting[pace.step] = asyncio.create_task(answer(model, pace.step, acknowledged))
        if pace.step % 2:
            acknowledged.set()
        await asyncio.sleep(0.03)
        running = pace()


asyncio.run(serve())

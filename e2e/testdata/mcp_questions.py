# SPDX-License-Identifier: Apache-2.0
"""Asks gputrace mcp by the official Python client and prints each answer as a line of JSON: mcp_questions.py GPUTRACE PID FOLDER.

A client of each kind is started: of the newest protocol and of the one before it, which accept and decline a recording, and one that cannot ask.
"""

import asyncio
import json
import sys

from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult


def asking(action, asked):
    async def elicit(_, params):
        asked.append(params.message)
        return ElicitResult(action=action, content={} if action == "accept" else None)

    return elicit


async def ask(client, tool, **arguments):
    answer = await client.call_tool(tool, arguments)  # checks the structure by the tool's schema
    text = [part.text for part in answer.content]
    print(json.dumps({"tool": tool, "text": text, "error": bool(answer.is_error), "answer": answer.structured_content}), flush=True)
    return answer.structured_content


async def main(program, pid, folder):
    server = StdioServerParameters(command=program, args=["mcp", "--folder", folder])
    said = []
    async with Client(server, elicitation_callback=asking("accept", said)) as client:
        tools = (await client.list_tools()).tools
        print(json.dumps({"tools": {t.name: t.annotations.read_only_hint for t in tools}}), flush=True)
        await ask(client, "list_processes")
        await ask(client, "who_holds", pid=pid)
        await ask(client, "who_holds", pid=1)
        recorded = (await ask(client, "record", pid=pid, seconds=4))["recording"]
        await ask(client, "verdict", recording=recorded)
        await ask(client, "drill_down", recording=recorded, by="holder", top=3)
        await ask(client, "compare", before=recorded, at=["1s"], top=3)
        await ask(client, "why_out_of_memory", recording=recorded)
    async with Client(server, mode="legacy", elicitation_callback=asking("decline", said)) as client:
        await ask(client, "record", pid=pid, seconds=5)
    async with Client(server, mode="legacy") as client:
        await ask(client, "record", pid=pid, seconds=5)
    print(json.dumps({"asked": said}))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))

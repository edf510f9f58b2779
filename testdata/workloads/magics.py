"""Cells of a notebook that use gputrace's magics, run by IPython's shell in this process. Prints what each cell showed, as JSON lines."""

import json

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

CELLS = [
    "%load_ext gputrace\nimport torch",
    "%gputrace",
    "model = torch.nn.Linear(512, 512).cuda(); losses = []",
    "%%gputrace\nfor _ in range(8):\n    losses.append(torch.ones(1 << 18, device='cuda'))",
    "%%gputrace\nlosses.clear()",
    "%gputrace",
    "%gputrace now",
    "%%gputrace\nimport asyncio\nawait asyncio.sleep(0)\nlosses.append(torch.ones(1 << 18, device='cuda'))\nraise ValueError('kept')",
    "%%gputrace\n%%time\nlosses.clear()",
]


def main():
    shell = InteractiveShell.instance()
    for source in CELLS:
        with capture_output() as shown:
            done = shell.run_cell(source)
        html = done.result._repr_html_() if done.result else ""
        printed = shown.stdout + "".join(output.data["text/plain"] + "\n" for output in shown.outputs)
        error = done.error_in_exec or done.error_before_exec
        print(json.dumps({"printed": printed, "html": html, "error": str(error or "")}), flush=True)


main()

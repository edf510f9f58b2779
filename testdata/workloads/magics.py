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
]


def main():
    shell = InteractiveShell.instance()
    for source in CELLS:
        with capture_output() as shown:
            done = shell.run_cell(source)
            done.raise_error()
        html = done.result._repr_html_() if done.result else ""  # of a cell magic IPython keeps no result here
        print(json.dumps({"printed": shown.stdout, "html": html}), flush=True)


main()

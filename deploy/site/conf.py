# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site that needs no network, by Sphinx: make site. Its pages are docs/README.md and those of docs/use, in its order."""

import posixpath
import re

project = "gputrace"
author = "the gputrace authors"
extensions = ["myst_parser"]
myst_heading_anchors = 6
root_doc = "README"
exclude_patterns = ["schemas", "decisions", "measured"]
suppress_warnings = ["misc.highlighting_failure", "myst.header"]
html_theme = "furo"
html_title = "gputrace"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

REPOSITORY = "https://github.com/gputrace/gputrace/blob/main/"
ROW = re.compile(r"^\| \[[^\]]+\]\((use/[\w/.-]+)\.md\) \|", re.M)
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
CODE = re.compile(r"^(```|~~~).*?^\1\s*$|`[^`\n]+`", re.M | re.S)


def contents(text):
    """The tables of contents that docs/README.md's sections make. A page of docs/use that none of them has is a warning, which a build does not survive."""
    out = []
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, rest = section.partition("\n")
        if pages := ROW.findall(rest):
            out += ["", "```{toctree}", ":hidden:", ":caption: " + title.strip(), "", *pages, "```"]
    return "\n".join(out) + "\n"


def read(app, name, source):
    """Makes links to files that are no pages links to the repository, and adds the tables of contents to the first page."""
    text, folder = source[0], posixpath.dirname(name)

    def link(m):
        target = posixpath.normpath(posixpath.join("docs", folder, m[2]))
        if target.startswith(("docs/use/", "docs/pictures/")) or target == "docs/README.md":
            return m[0]
        return m[1] + REPOSITORY + target + m[3]

    out, at = [], 0
    for code in CODE.finditer(text):
        out += [LINK.sub(link, text[at : code.start()]), code[0]]
        at = code.end()
    source[0] = "".join(out) + LINK.sub(link, text[at:])
    if name == root_doc:
        source[0] += contents(text)


def setup(app):
    app.connect("source-read", read)

# SPDX-License-Identifier: Apache-2.0
"""python -m gputrace: the program gputrace."""

from gputrace import _main

_main()

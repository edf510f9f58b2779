"""Runs a training script that answers questions about its memory: who_run.py DIR SCRIPT [ARGUMENTS]

It answers after each step and, with --hold, at the end (who_answer.py); then it prints DONE as the script alone does.
"""

import runpy
import sys

import sidecar
import who_answer


def main():
    folder, script = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    desk = who_answer.Desk(folder)
    step = sidecar.Sidecar.step

    def answering_step(self, *arguments, **keywords):
        step(self, *arguments, **keywords)
        desk.poll()

    def answering_wait(_):
        desk.serve()

    sidecar.Sidecar.step, sidecar.wait_for_file = answering_step, answering_wait
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()

"""gdb_stacks.py: for gdb -x, attached to a job that waits for the file $GO. At each report of the caching allocator the debugger unwinds
the stack; what it finds goes to the file $STACKS, as JSON, when the job has printed its last allocation: at the breakpoint $LAST times."""
import json
import os
import re

import gdb

REPORT = 'c10::reportMemoryUsageToProfiler(void*, long, unsigned long, unsigned long, c10::Device)'
found = []


class Report(gdb.Breakpoint):
    def stop(self):
        frame, pcs = gdb.newest_frame(), []
        thread = gdb.selected_thread().ptid[1]
        address, size = int(frame.read_register('rdi')) & (1 << 64) - 1, int(frame.read_register('rsi'))
        while frame is not None:
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):  # those have no frame on the stack
                pcs.append(frame.pc())
            last, frame = frame, frame.older()
        found.append({'addr': address, 'size': size, 'tid': thread, 'pcs': pcs, 'end': gdb.frame_stop_reason_string(last.unwind_stop_reason())})
        return len(found) == int(os.environ['LAST'])


def main():
    gdb.execute('set pagination off')
    gdb.execute('set confirm off')
    gdb.execute('set backtrace past-main on')
    said = gdb.execute(f'info address {REPORT}', to_string=True)
    Report('*' + re.search('0x[0-9a-f]+', said)[0])
    with open(os.environ['GO'], 'w', encoding='utf-8'):
        pass
    gdb.execute('continue')
    with open(os.environ['STACKS'], 'w', encoding='utf-8') as f:
        json.dump(found, f)
    gdb.execute('detach')
    gdb.execute('quit')


main()

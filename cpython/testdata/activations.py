"""For gdb: prints, for each native frame of the eval loop, its thread's id and where it lies on the stack: [sp, sp of its caller), and its pc."""
import gdb

for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame = gdb.newest_frame()
    while frame is not None:
        older = frame.older()
        if frame.name() == "_PyEval_EvalFrameDefault":
            low, high = (int(f.read_register("rsp")) & (1 << 64) - 1 for f in (frame, older))
            print("eval", thread.ptid[1], low, high, frame.pc())
        frame = older

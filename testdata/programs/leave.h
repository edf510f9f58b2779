// Leaving a function from within, past the frames of libraries, in each way that a program can.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

enum way { BY_EXIT, BY_JUMP, BY_THROW }; // the end of the thread, longjmp, a C++ exception

// run_until_left calls f(arg), BY_EXIT in a thread of its own, and gives 1 if it was left and 0 if it returned.
int run_until_left(enum way way, void (*f)(void *), void *arg);
// leave ends the innermost run_until_left of this thread. It does not return.
void leave(void);

#ifdef __cplusplus
}
#endif

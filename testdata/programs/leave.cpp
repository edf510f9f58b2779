#include "leave.h"
#include <csetjmp>
#include <cstdlib>
#include <pthread.h>

namespace {

struct Left {};
struct Work {
    void (*f)(void *);
    void *arg;
};
thread_local enum way current;
thread_local jmp_buf target;

int run_jump(void (*f)(void *), void *arg) {
    if (setjmp(target)) return 1;
    f(arg);
    return 0;
}

int run_throw(void (*f)(void *), void *arg) {
    try {
        f(arg);
    } catch (const Left &) {
        return 1;
    }
    return 0;
}

void *run_work(void *arg) {
    auto *work = static_cast<Work *>(arg);
    current = BY_EXIT;
    work->f(work->arg);
    return nullptr;
}

int run_exit(void (*f)(void *), void *arg) {
    Work work{f, arg};
    pthread_t thread;
    void *left;
    if (pthread_create(&thread, nullptr, run_work, &work) || pthread_join(thread, &left)) abort();
    return left != nullptr;
}

} // namespace

int run_until_left(enum way way, void (*f)(void *), void *arg) {
    current = way;
    if (way == BY_EXIT) return run_exit(f, arg);
    return way == BY_JUMP ? run_jump(f, arg) : run_throw(f, arg);
}

void leave() {
    static int mark;
    if (current == BY_EXIT) pthread_exit(&mark);
    if (current == BY_JUMP) longjmp(target, 1);
    throw Left{};
}

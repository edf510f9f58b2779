// Has the CUDA runtime inside, linked statically, as nvcc links it by default: linked [--calls N] [--go FILE] [--hold
// FILE] Its first call loads the driver. Allocates by the runtime, gives every second block back, and prints "DONE
// <bytes in use>".
#include "wait.h"

int cudaMalloc(void **p, size_t n);
int cudaFree(void *p);

static __attribute__((noinline)) long allocate(int calls) {
    long now = 0;
    for (int i = 0; i < calls; i++) {
        long size = 4096 * (i % 7 + 1);
        void *p;
        if (cudaMalloc(&p, (size_t)size)) return -1;
        now += size;
        if (i % 2 == 0) continue;
        if (cudaFree(p)) return -1;
        now -= size;
    }
    return now;
}

int main(int argc, char **argv) {
    int calls = 100;
    const char *go = NULL, *loaded = NULL, *hold = NULL;
    const struct option options[] = {{"--calls", &calls, NULL, NULL},
                                     {"--go", NULL, &go, NULL},
                                     {"--loaded", NULL, &loaded, NULL},
                                     {"--hold", NULL, &hold, NULL},
                                     {0}};
    parse_options(argc, argv, options);
    wait_for_go(go);
    if (loaded) {
        if (cudaFree(NULL)) return 1;
        printf("LOADED\n");
        fflush(stdout);
        wait_for_file(loaded);
    }
    printf("DONE %ld\n", allocate(calls));
    fflush(stdout);
    wait_for_file(hold);
    return 0;
}

// Takes memory from libsampled.so and gives it back at random, then prints what its samples are, and at
// the end how many tracers its probes have.
//
// sampled --go FILE --hold FILE --interval BYTES
#include "sampled.h"
#include "wait.h"
#include <stdint.h>

enum { slots = 512, turns = 20000 };

static __attribute__((noinline)) void *take(uint64_t seed) {
    if (seed >> 60 == 0) return sampled_take_page();
    return sampled_take(1 + (seed >> 48) % 6000);
}

int main(int argc, char **argv) {
    const char *go = 0, *hold = 0;
    int interval = 0;
    const struct option options[] = {
        {"--go", .text = &go}, {"--hold", .text = &hold}, {"--interval", .number = &interval}, {0}};
    void *held[slots] = {0};
    uint64_t seed = 1;

    parse_options(argc, argv, options);
    sampled_interval(interval);
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    wait_for_file(go);
    for (int i = 0; i < turns; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int s = (seed >> 40) % slots;
        if (held[s]) {
            sampled_give(held[s]);
            held[s] = 0;
        } else {
            held[s] = take(seed);
        }
    }
    struct sampled_counts c = sampled_count();
    printf("USED %zu %zu %zu %zu\n", c.live, c.bytes, c.weight, c.all);
    fflush(stdout);
    wait_for_file(hold);
    printf("TRACERS %d\n", sampled_tracers());
}

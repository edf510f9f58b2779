// Takes memory from three pools of two devices and gives it back at random, then prints what each device has, the bytes
// that were taken, and how many requests were refused.
//
// arena --go FILE --hold FILE
#include "arena.h"
#include "wait.h"
#include <stdint.h>

enum { pools = 3, slots = 64, turns = 20000 };

int main(int argc, char **argv) {
    const char *go = 0, *hold = 0;
    const struct option options[] = {{"--go", .text = &go}, {"--hold", .text = &hold}, {0}};
    struct arena *pool[pools];
    void *held[pools][slots] = {0};
    size_t taken = 0, refused = 0;
    uint64_t seed = 1;

    parse_options(argc, argv, options);
    for (int i = 0; i < pools; i++)
        pool[i] = arena_open(i % 2, 24 << 10);
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    wait_for_file(go);
    for (int i = 0; i < turns; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int p = (seed >> 33) % pools, s = (seed >> 40) % slots;
        if (held[p][s]) {
            arena_give(pool[p], held[p][s]);
            held[p][s] = 0;
            continue;
        }
        size_t bytes = 1 + (seed >> 48) % 1500;
        held[p][s] = arena_take(pool[p], bytes);
        if (held[p][s])
            taken += bytes;
        else
            refused++;
    }
    printf("USED %zu %zu %zu %zu\n", arena_used(pool[0]) + arena_used(pool[2]), arena_used(pool[1]), taken, refused);
    fflush(stdout);
    wait_for_file(hold);
}

// Calls memory functions in different ways and keeps an account of its own of what is live.
//
// PROGRAM [MODE] [--threads N] [--rounds N] [--only FAMILY[,FAMILY] | all] [--drain] [--log FILE] [--go FILE]
//         [--hold FILE]
//
//   (no mode)  each thread takes and gives back at random, makes calls that fail, and leaves some memory live
//   --race     small pieces, taken and given back at once, also by other threads: addresses come again
//   --die      calls are left by the end of their thread: before the driver is reached, in it, and behind it
//   --jump     the same by longjmp
//   --throw    the same by C++ exceptions; a return probe on such a call ends the program, so not under a tracer
//   --reset    contexts are destroyed and devices reset with memory in them (cudacalls, hipcalls)
//   --drain    (beside a mode) gives everything back at the end
//   --list     prints the families and ends
//
// What fails is tried again, but for allocations in the first mode. For each function that was called it prints
// "CALL <function> ok <n> failed <n> left <n>", then "LIVE <function> <pointer> <bytes>" for what is left, and
// "TOTAL live <n> bytes <n>". The log has a line for each call, "<tid> <begin> <end> <function> <result>", when it has
// ended; times are CLOCK_BOOTTIME, ns, and the result of a call that was left is "left".
#define _GNU_SOURCE
#include "calls.h"
#include "leave.h"
#include "wait.h"
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

enum { MAXCALLS = 256, MAXFAMILIES = 128, LIVE_BLOCKS = 16, SHARED = 64 };

// Where a call is left: the stand-in calls us at these points (testdata/standin/README.md).
enum point { NOWHERE, BEFORE_DRIVER, IN_DRIVER, AFTER_DRIVER };

struct account {
    unsigned seed;
    int call;              // under way, -1: none
    int tid;               // that makes it
    uint64_t begin;        // when it began
    struct block *pending; // whose part that call hands out or gives back
    int giving;            // it gives it back
    enum point leave_at;   // the call to come is to be left there
    int effect;            // the call that was left had its effect
    struct block blocks[BLOCKS];
    size_t ok[MAXCALLS], failed[MAXCALLS], left[MAXCALLS];
    struct account *next;
};
static struct account *accounts;
static __thread struct account *own;

static int threads = 4, rounds = 1000, race, die, jump, throwing, reset, drain, list, misused;
static const char *go, *hold, *only, *log_path;
static FILE *call_log;
static const struct family *chosen[MAXFAMILIES];
static int n_chosen;
static struct block *shared[SHARED]; // --race: blocks of nobody

// ---- the account

static struct account *open_account(void) {
    struct account *a = calloc(1, sizeof *a);
    if (!a) abort();
    a->seed = accounts ? accounts->seed + 1 : 1;
    a->call = -1;
    a->next = accounts;
    return accounts = a;
}
unsigned draw(unsigned below) { return (unsigned)rand_r(&own->seed) % below; }
struct block *own_block(int i) { return &own->blocks[i]; }

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
static void write_log(const struct account *a, const char *result) {
    if (call_log) fprintf(call_log, "%d %lu %lu %s %s\n", a->tid, a->begin, now(), calls[a->call].name, result);
}
void call_begins(int call) {
    own->call = call;
    own->tid = (int)gettid();
    own->begin = now();
}
int call_ended(int rc) {
    char result[16];
    snprintf(result, sizeof result, "%d", rc);
    write_log(own, result);
    if (rc)
        own->failed[own->call]++;
    else
        own->ok[own->call]++;
    own->call = -1;
    return rc;
}
struct part *fresh(struct block *b, size_t n, int (*release)(struct part *)) {
    if (b->parts == PARTS) abort();
    struct part *s = &b->part[b->parts];
    *s = (struct part){.n = n, .release = release};
    return s;
}
static void keep(struct block *b) {
    struct part *s = &b->part[b->parts++];
    if (s->rows) s->n = s->pitch * s->rows;
    if (s->from) s->p = *s->from;
}
void part_begins(struct block *b, int call) {
    b->part[b->parts].call = call;
    own->pending = b;
}
int part_ended(struct block *b, int rc) {
    own->pending = NULL;
    if (!rc) keep(b);
    return rc;
}
int give_last(struct block *b) {
    own->pending = b;
    own->giving = 1;
    int rc = b->part[b->parts - 1].release(&b->part[b->parts - 1]);
    own->pending = NULL;
    own->giving = 0;
    if (!rc) b->parts--;
    return rc;
}
int give(struct block *b) {
    int rc = 0;
    for (int i = 0; b->parts && i < RETRIES; i++)
        rc = give_last(b);
    return b->parts ? rc : 0;
}
int take(struct block *b, const struct family *f, size_t n) {
    int rc = f->take(b, n);
    if (rc) give(b);
    return rc;
}
// settle brings the account up to date when a call was left.
static void settle(struct account *a) {
    if (a->call >= 0) {
        a->left[a->call]++;
        write_log(a, "left");
    }
    if (a->pending && a->effect && a->giving)
        a->pending->parts--;
    else if (a->pending && a->effect)
        keep(a->pending);
    a->call = -1;
    a->pending = NULL;
    a->giving = a->effect = 0;
    a->leave_at = NOWHERE;
}

// ---- modes

static size_t some_bytes(void) { return 1 + draw(4 << 20); }

static void *mix(void *arg) {
    own = arg;
    start_thread();
    for (int i = 0; i < rounds; i++) {
        struct block *b = own_block((int)draw(LIVE_BLOCKS));
        if (give(b)) continue;
        take(b, chosen[i < n_chosen ? i : (int)draw((unsigned)n_chosen)], some_bytes());
        if (i % 16 == 0 && misused) misuse(b);
    }
    return NULL;
}

static struct block *swap(struct block **slot, struct block *b) {
    return __atomic_exchange_n(slot, b, __ATOMIC_ACQ_REL);
}
static void drop(struct block *b) {
    if (b && give(b)) abort();
    free(b);
}
static void *run_race(void *arg) {
    own = arg;
    start_thread();
    for (int i = 0; i < rounds; i++) {
        struct block **slot = &shared[draw(SHARED)];
        drop(swap(slot, NULL));
        struct block *b = calloc(1, sizeof *b);
        const struct family *f = chosen[draw((unsigned)n_chosen)];
        for (int tries = 0; tries < RETRIES && take(b, f, 1 + draw(4096));)
            tries++;
        drop(swap(slot, b));
    }
    return NULL;
}

static void leave_if(enum point point, int effect) {
    if (!own || own->call < 0 || own->leave_at != point) return;
    own->leave_at = NOWHERE;
    own->effect = effect;
    leave();
}
static void before_driver(const char *function) { leave_if(BEFORE_DRIVER, 0); }
static void in_driver(const char *function) { leave_if(IN_DRIVER, 0); }
static void after_driver(const char *function, int rc) { leave_if(AFTER_DRIVER, !rc); }

struct attempt {
    struct account *account;
    struct block *block;
};
// attempt takes or gives back one block, and leaves a call on the way, if there is one that reaches the point.
static void attempt(void *arg) {
    struct attempt *at = arg;
    if (own != at->account) {
        own = at->account;
        start_thread();
    }
    own->leave_at = BEFORE_DRIVER + draw(AFTER_DRIVER);
    if (at->block->parts)
        give(at->block);
    else
        take(at->block, chosen[draw((unsigned)n_chosen)], some_bytes());
    own->leave_at = NOWHERE;
}
static void *run_leaving(void *arg) {
    own = arg;
    start_thread();
    struct account *a = own;
    for (int i = 0; i < rounds; i++) {
        struct attempt at = {a, own_block((int)draw(LIVE_BLOCKS))};
        if (run_until_left(die ? BY_EXIT : jump ? BY_JUMP : BY_THROW, attempt, &at)) settle(a);
    }
    return NULL;
}

static void run_threads(void *(*f)(void *)) {
    pthread_t *thread = calloc((size_t)threads, sizeof *thread);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, f, open_account())) abort();
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    free(thread);
}

// ---- loading

static void *open_any(const char *const *names) {
    for (; *names; names++) {
        void *lib = dlopen(*names, RTLD_NOW | RTLD_GLOBAL);
        if (lib) return lib;
    }
    fprintf(stderr, "calls: %s\n", dlerror());
    exit(1);
}
// A driver may be too old or too new for a function, whose calls then fail.
static int missing(void) { return -1; }
static void load(void) {
    void *library[4] = {0};
    for (const struct call *c = calls; c->name; c++) {
        if (!library[c->library]) library[c->library] = open_any(libraries[c->library]);
        *c->pointer = dlsym(library[c->library], c->name);
        if (*c->pointer) continue;
        fprintf(stderr, "calls: no %s\n", c->name);
        *c->pointer = (void *)missing;
    }
}
// set_hook gives the stand-in a function to call. Not every library has every point.
static int set_hook(const char *name, void *f) {
    void **hook = dlsym(RTLD_DEFAULT, name);
    if (hook) *hook = f;
    return hook != NULL;
}
static void set_hooks(void) {
    set_hook("standin_before_driver", (void *)before_driver);
    set_hook("standin_after_driver", (void *)after_driver);
    if (set_hook("standin_in_driver", (void *)in_driver)) return;
    fprintf(stderr, "calls: --die, --jump and --throw need the stand-in\n");
    exit(1);
}

// ---- the report

static void print_calls(void) {
    for (int c = 0; calls[c].name; c++) {
        size_t sum[3] = {0};
        for (struct account *a = accounts; a; a = a->next)
            sum[0] += a->ok[c], sum[1] += a->failed[c], sum[2] += a->left[c];
        if (sum[0] + sum[1] + sum[2])
            printf("CALL %s ok %zu failed %zu left %zu\n", calls[c].name, sum[0], sum[1], sum[2]);
    }
}
static void print_block(const struct block *b, size_t *count, size_t *bytes) {
    for (int i = 0; b && i < b->parts; i++) {
        const struct part *s = &b->part[i];
        if (s->silent) continue;
        printf("LIVE %s 0x%lx %zu\n", calls[s->call].name, s->p, s->n);
        *count += 1;
        *bytes += s->n;
    }
}
static void print_live(void) {
    size_t count = 0, bytes = 0;
    for (struct account *a = accounts; a; a = a->next)
        for (int i = 0; i < BLOCKS; i++)
            print_block(&a->blocks[i], &count, &bytes);
    for (int i = 0; i < SHARED; i++)
        print_block(shared[i], &count, &bytes);
    printf("TOTAL live %zu bytes %zu\n", count, bytes);
}

static void give_all(void) {
    for (struct account *a = accounts; a; a = a->next)
        for (int i = 0; i < BLOCKS; i++)
            if (give(&a->blocks[i])) abort();
    for (int i = 0; i < SHARED; i++)
        if (shared[i] && give(shared[i])) abort();
    settle_device();
}

// ---- options

static int listed(const char *names, const char *name) {
    size_t n = strlen(name);
    for (const char *at = names; (at = strstr(at, name)); at += n)
        if ((at == names || at[-1] == ',') && (!at[n] || at[n] == ',')) return 1;
    return 0;
}
static int all(void) { return only && !strcmp(only, "all"); }
static void choose(void) {
    for (const struct family *f = families; f->name; f++)
        if (only ? all() || listed(only, f->name) : !f->apart) chosen[n_chosen++] = f;
    if (n_chosen) return;
    fprintf(stderr, "calls: no family is named %s\n", only);
    exit(2);
}
static void print_families(void) {
    for (const struct family *f = families; f->name; f++)
        if (f == families || strcmp(f->name, f[-1].name)) printf("%s\n", f->name);
}
static void run(void) {
    if (reset)
        run_reset(rounds);
    else if (die || jump || throwing)
        run_threads(run_leaving);
    else
        run_threads(race ? run_race : mix);
}

int main(int argc, char **argv) {
    const struct option options[] = {{"--threads", &threads},     {"--rounds", &rounds},
                                     {"--only", NULL, &only},     {"--log", NULL, &log_path},
                                     {"--go", NULL, &go},         {"--hold", NULL, &hold},
                                     {"--race", .flag = &race},   {"--die", .flag = &die},
                                     {"--jump", .flag = &jump},   {"--throw", .flag = &throwing},
                                     {"--reset", .flag = &reset}, {"--list", .flag = &list},
                                     {"--drain", .flag = &drain}, {0}};
    parse_options(argc, argv, options);
    if (threads < 1 || threads > 1024 || rounds < 0 || race + die + jump + throwing + reset > 1)
        return fprintf(stderr, "calls: options out of range\n"), 2;
    if (list) return print_families(), 0;
    choose();
    if (log_path && !(call_log = fopen(log_path, "w"))) return perror(log_path), 1;
    load();
    if (die || jump || throwing) set_hooks();
    wait_for_go(go); // nothing was called yet
    own = open_account();
    start();
    misused = !only || all();
    if (misused) misuse_alone();
    run();
    if (drain) give_all();
    if (call_log) fclose(call_log);
    print_calls();
    print_live();
    if (hold) printf("DONE\n");
    fflush(stdout);
    wait_for_file(hold);
    return 0;
}

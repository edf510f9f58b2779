// Streams and events. Streams are always idle; an event completes at once, or STANDIN_EVENT_US after its
// record.
#include "driver.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct stream {
    int dev, priority;
    struct context *ctx;
    struct graph *capture; // the graph that is being captured
    unsigned flags;
    uint64_t id;
};
struct event {
    uint64_t ns;
};

static uint64_t last_id = 1;
static uint64_t next_id(void) { return __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED); }
static int real(const struct stream *s) { return (uintptr_t)s > 4096; } // not one of the special handles 0, 1, 2

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int cuStreamCreateWithPriority(struct stream **s, unsigned flags, int priority) {
    if (!(*s = malloc(sizeof **s))) return OUT_OF_MEMORY;
    **s =
        (struct stream){.dev = cur_dev(), .ctx = ctx_current(), .priority = priority, .flags = flags, .id = next_id()};
    return OK;
}
int cuStreamCreate(struct stream **s, unsigned flags) { return cuStreamCreateWithPriority(s, flags, 0); }
int cuStreamDestroy_v2(struct stream *s) { return free(s), OK; }
int cuStreamSynchronize(struct stream *s) {
    init();
    if (set.event_ns) usleep((unsigned)(set.event_ns / 1000));
    return LOCKED((pools_sync(), OK));
}
int cuStreamQuery(struct stream *s) { return OK; }
int cuStreamWaitEvent(struct stream *s, struct event *e, unsigned flags) { return OK; }
int cuStreamGetPriority(struct stream *s, int *priority) { return *priority = real(s) ? s->priority : 0, OK; }
int cuStreamGetFlags(struct stream *s, unsigned *flags) { return *flags = real(s) ? s->flags : 0, OK; }
int cuStreamGetId(struct stream *s, uint64_t *id) { return *id = real(s) ? s->id : 0, OK; }
int cuStreamGetCtx(struct stream *s, struct context **c) { return *c = real(s) ? s->ctx : ctx_current(), OK; }
int cuStreamWriteValue32(struct stream *s, dptr p, uint32_t v, unsigned flags) { return *(uint32_t *)p = v, OK; }

// A capture records nothing: the graph that comes out is empty, and what is allocated meanwhile is real at once.
int cuStreamBeginCapture_v2(struct stream *s, int mode) {
    if (!real(s)) return CAPTURE_UNSUPPORTED;
    if (!(s->capture = graph_create())) return OUT_OF_MEMORY;
    s->id = next_id();
    return OK;
}
int cuStreamEndCapture(struct stream *s, struct graph **graph) {
    if (!real(s) || !s->capture) return INVALID_VALUE;
    *graph = s->capture;
    s->capture = NULL;
    return OK;
}
int cuStreamIsCapturing(struct stream *s, int *status) { return *status = real(s) && s->capture, OK; }
int cuStreamGetCaptureInfo_v3(struct stream *s, int *status, uint64_t *id, struct graph **graph, const void **deps,
                              const void **edges, size_t *n) {
    *status = real(s) && s->capture;
    if (id) *id = real(s) ? s->id : 0;
    if (graph) *graph = real(s) ? s->capture : NULL;
    if (deps) *deps = NULL;
    if (edges) *edges = NULL;
    if (n) *n = 0;
    return OK;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { return OK; }

int cuEventCreate(struct event **e, unsigned flags) { return (*e = calloc(1, sizeof **e)) ? OK : OUT_OF_MEMORY; }
int cuEventDestroy_v2(struct event *e) { return free(e), OK; }
int cuEventRecord(struct event *e, struct stream *s) { return e->ns = now(), OK; }
int cuEventRecordWithFlags(struct event *e, struct stream *s, unsigned flags) { return e->ns = now(), OK; }
int cuEventQuery(struct event *e) {
    init();
    return set.event_ns && now() - e->ns < set.event_ns ? NOT_READY : OK;
}
int cuEventSynchronize(struct event *e) {
    while (cuEventQuery(e))
        usleep(20);
    return LOCKED((pools_sync(), OK));
}
int cuEventElapsedTime_v2(float *ms, struct event *a, struct event *b) {
    *ms = (float)(b->ns - a->ns) / 1e6f;
    return OK;
}
// Events between processes: each has its own, which completes at once.
int cuIpcGetEventHandle(char *handle, struct event *e) { return memset(handle, 0, 64), OK; }
struct event_handle { // CUipcEventHandle, passed by value
    char bytes[64];
};
int cuIpcOpenEventHandle(struct event **e, struct event_handle handle) { return cuEventCreate(e, 0); }

struct host_call {
    void (*function)(void *);
    void *data;
};

static void *call_host(void *p) {
    struct host_call c = *(struct host_call *)p;
    free(p);
    c.function(c.data);
    return NULL;
}

// A host function runs on a thread of its own, as the driver's do: XLA waits for it.
int cuLaunchHostFunc(struct stream *s, void (*function)(void *), void *data) {
    struct host_call *c = malloc(sizeof *c);
    pthread_t thread;
    if (!c) return OUT_OF_MEMORY;
    *c = (struct host_call){function, data};
    if (pthread_create(&thread, NULL, call_host, c)) return free(c), OUT_OF_MEMORY;
    pthread_detach(thread);
    return OK;
}

// Contexts: which are current on a thread, what each charges, and what goes with it.
#include "core.h"

enum { MAXCTX = 128, DEPTH = 64 };
static struct context contexts[MAXDEV + MAXCTX]; // the first MAXDEV are the devices' primary contexts
static __thread struct context *stack[DEPTH];
static __thread int depth;

struct context *ctx_primary(int dev) { return &contexts[dev]; }
static int primary(const struct context *c) { return c < contexts + MAXDEV; }
struct context *ctx_current(void) { return depth ? stack[depth - 1] : NULL; }
int cur_dev(void) {
    struct context *c = ctx_current();
    return c ? c->dev : 0;
}

int ctx_to_use(struct context **out) {
    *out = ctx_current();
    return !*out ? INVALID_CONTEXT : (*out)->live ? OK : CONTEXT_IS_DESTROYED;
}
int ctx_valid(const struct context *c) { return c >= contexts && c < contexts + MAXDEV + MAXCTX && c->live; }

void ctx_set(struct context *c) {
    if (depth && !c)
        depth--;
    else if (c)
        stack[depth ? depth - 1 : depth++] = c;
}
void ctx_push(struct context *c) {
    if (depth < DEPTH) stack[depth++] = c;
}
int ctx_pop(struct context **out) {
    if (!depth) return INVALID_CONTEXT;
    depth--;
    if (out) *out = stack[depth];
    return OK;
}

int ctx_create(struct context **out, int dev, size_t memory) {
    if (dev < 0 || dev >= set.devices) return INVALID_DEVICE;
    struct context *c = contexts + MAXDEV; // the lowest free one: a handle comes back at once
    while (c < contexts + MAXDEV + MAXCTX && c->live)
        c++;
    if (c == contexts + MAXDEV + MAXCTX || charge(dev, memory)) return OUT_OF_MEMORY;
    *c = (struct context){.dev = dev, .live = 1, .refs = 1};
    note.dev = dev;
    *out = c;
    return OK;
}

// end frees what goes with a context. Physical memory and what is in pools does not (cuCtxDestroy in cuda.h).
static void end(struct context *c, size_t memory) {
    struct range *r;
    for (size_t i = 0; (r = range_at(i));)
        if (r->ctx == c)
            range_free(r);
        else
            i++;
    external_reset(c);
    memset(c->slabs, 0, sizeof c->slabs);
    refund(c->dev, memory);
    note.dev = c->dev;
    c->live = 0;
}
int ctx_destroy(struct context *c, size_t memory) {
    if (!ctx_valid(c) || primary(c)) return INVALID_CONTEXT;
    end(c, memory);
    if (ctx_current() == c) ctx_pop(NULL);
    return OK;
}

int ctx_attach(struct context **out) {
    int rc = ctx_to_use(out);
    if (rc || primary(*out)) return rc ? rc : INVALID_CONTEXT; // a primary context is retained and released
    (*out)->refs++;
    note.dev = (*out)->dev;
    return OK;
}
int ctx_detach(struct context *c, size_t memory) {
    if (!ctx_valid(c) || primary(c)) return INVALID_CONTEXT;
    if (c->refs == 1) return ctx_destroy(c, memory);
    c->refs--;
    note.dev = c->dev;
    return OK;
}

int ctx_revive(struct context *c) {
    if (!primary(c) || c->live || !c->refs) return OK;
    if (charge(c->dev, set.context_mem)) return OUT_OF_MEMORY;
    c->live = 1;
    return OK;
}
int ctx_retain(struct context **out, int dev) {
    if (dev < 0 || dev >= set.devices) return INVALID_DEVICE;
    struct context *c = ctx_primary(dev);
    c->dev = dev;
    c->refs++;
    if (ctx_revive(c)) return c->refs--, OUT_OF_MEMORY;
    note.dev = dev;
    *out = c;
    return OK;
}
// reset ends a primary context, and with it the device's stream-ordered memory. References to it stay.
static void reset(struct context *c) {
    pools_reset(c->dev);
    graphs_reset(c->dev);
    if (c->live) end(c, set.context_mem);
}
int ctx_release(int dev) {
    if (dev < 0 || dev >= set.devices) return INVALID_DEVICE;
    struct context *c = ctx_primary(dev);
    note.dev = dev;
    if (!c->refs) return INVALID_CONTEXT;
    if (!--c->refs) reset(c);
    return OK;
}
int ctx_reset(int dev) {
    if (dev < 0 || dev >= set.devices) return INVALID_DEVICE;
    note.dev = dev;
    reset(ctx_primary(dev));
    return OK;
}

// Memory nodes of graphs. A node has an address from the moment it is added; a launch gives it memory, from a pool of
// the device that keeps it until it is trimmed (cuDeviceGraphMemTrim).
#include "core.h"

// What an allocation node stands for. It lives while a graph or an instance of it does, or its memory.
struct graph_memory {
    int dev, refs, live;
    size_t n;
    struct range *range;
};
struct graph_node {
    struct graph_memory *memory;
    dptr address;
    int is_free;
    struct graph_node *next;
};
struct graph {
    struct graph_node *nodes, **end;
};
struct graph_exec { // the memory nodes in order, each 2 words: what, and whether it is freed
    uint64_t flags;
    size_t n;
    struct {
        struct graph_memory *memory;
        int is_free;
    } step[];
};
static struct {
    size_t used, reserved, used_hi, reserved_hi;
} pools[MAXDEV];

static void memory_drop(struct graph_memory *m) {
    if (m->refs || m->live) return;
    range_unmap(m->range);
    free(m);
}
static void memory_unref(struct graph_memory *m) {
    m->refs--;
    memory_drop(m);
}
static int memory_make(struct graph_memory *m) {
    size_t used = pools[m->dev].used + m->n;
    if (used > pools[m->dev].reserved) {
        if (charge(m->dev, used - pools[m->dev].reserved)) return OUT_OF_MEMORY;
        pools[m->dev].reserved = used;
    }
    pools[m->dev].used = used;
    if (used > pools[m->dev].used_hi) pools[m->dev].used_hi = used;
    if (pools[m->dev].reserved > pools[m->dev].reserved_hi) pools[m->dev].reserved_hi = pools[m->dev].reserved;
    m->live = 1;
    return OK;
}
static void memory_free(struct graph_memory *m) {
    pools[m->dev].used -= m->n;
    m->live = 0;
}
int graph_free(struct range *r) {
    if (!r->node->live) return INVALID_VALUE; // not launched yet, or free already
    memory_free(r->node);
    memory_drop(r->node);
    return OK;
}

struct graph *graph_create(void) {
    struct graph *g = malloc(sizeof *g);
    if (g) *g = (struct graph){NULL, &g->nodes};
    return g;
}
void graph_destroy(struct graph *g) {
    for (struct graph_node *n = g->nodes, *next; n; n = next) {
        next = n->next;
        memory_unref(n->memory);
        free(n);
    }
    free(g);
}
static struct graph_node *add(struct graph *g, struct graph_memory *m, int is_free) {
    struct graph_node *n = malloc(sizeof *n);
    if (!n) return NULL;
    *n = (struct graph_node){m, m->range->p, is_free, NULL};
    m->refs++;
    *g->end = n;
    g->end = &n->next;
    note.dev = m->dev;
    return n;
}

// CUDA_MEM_ALLOC_NODE_PARAMS (cuda.h): CUmemPoolProps with the device at 12, bytesize at 104, dptr at 112.
enum { PARAM_DEVICE = 12, PARAM_SIZE = 104, PARAM_ADDRESS = 112 };
int graph_add_alloc(struct graph_node **out, struct graph *g, char *params) {
    size_t n = *(size_t *)(params + PARAM_SIZE);
    int dev = *(int *)(params + PARAM_DEVICE);
    if (!n || dev < 0 || dev >= set.devices) return INVALID_VALUE;
    struct graph_memory *m = malloc(sizeof *m);
    dptr p = m ? map_big(UP(n, BIG), PROT_READ | PROT_WRITE) : 0;
    if (!p) return free(m), OUT_OF_MEMORY;
    *m = (struct graph_memory){.dev = dev, .n = UP(n, BIG), .range = range_add(p, UP(n, BIG), GRAPH, dev, n)};
    m->range->node = m;
    if (!(*out = add(g, m, 0))) return memory_drop(m), OUT_OF_MEMORY;
    note.other = (uint64_t)g;
    *(dptr *)(params + PARAM_ADDRESS) = p;
    return OK;
}
int graph_add_free(struct graph_node **out, struct graph *g, dptr p) {
    struct range *r = range_exact(p, GRAPH);
    if (!r) return INVALID_VALUE;
    for (struct graph_node *n = g->nodes; n; n = n->next)
        if (n->is_free && n->memory == r->node) return INVALID_VALUE; // twice in one graph
    note.other = (uint64_t)g;
    return (*out = add(g, r->node, 1)) ? OK : OUT_OF_MEMORY;
}
int graph_node_params(const struct graph_node *n, char *params) {
    if (n->is_free) return INVALID_VALUE;
    memset(params, 0, PARAM_ADDRESS + sizeof(dptr));
    *(int *)params = 1;       // CU_MEM_ALLOCATION_TYPE_PINNED
    *(int *)(params + 8) = 1; // CU_MEM_LOCATION_TYPE_DEVICE
    *(int *)(params + PARAM_DEVICE) = n->memory->dev;
    *(size_t *)(params + PARAM_SIZE) = n->memory->range->asked;
    *(dptr *)(params + PARAM_ADDRESS) = n->address;
    return OK;
}
int graph_node_address(const struct graph_node *n, dptr *p) { return n->is_free ? *p = n->address, OK : INVALID_VALUE; }
size_t graph_nodes(const struct graph *g, void **nodes, size_t room) {
    size_t n = 0;
    for (struct graph_node *at = g->nodes; at; at = at->next, n++)
        if (nodes && n < room) nodes[n] = at;
    return n;
}
size_t graph_has_memory(const struct graph *g) { return graph_nodes(g, NULL, 0); }
size_t graph_exec_has_memory(const struct graph_exec *e) { return e->n; }

struct graph_exec *graph_instantiate(struct graph *g, uint64_t flags) {
    size_t n = graph_nodes(g, NULL, 0);
    struct graph_exec *e = malloc(sizeof *e + n * sizeof *e->step);
    if (!e) return NULL;
    *e = (struct graph_exec){.flags = flags, .n = n};
    struct graph_node *at = g->nodes;
    for (size_t i = 0; i < n; i++, at = at->next) {
        e->step[i].memory = at->memory;
        e->step[i].is_free = at->is_free;
        at->memory->refs++;
    }
    return e;
}
void graph_exec_destroy(struct graph_exec *e) {
    for (size_t i = 0; i < e->n; i++)
        memory_unref(e->step[i].memory);
    free(e);
}

// launchable: what is to be allocated is free, and what is to be freed is allocated before.
enum { AUTO_FREE_ON_LAUNCH = 1 }; // CU_GRAPH_INSTANTIATE_FLAG
static void free_earlier(struct graph_exec *e) {
    for (size_t i = 0; i < e->n; i++)
        if (!e->step[i].is_free && e->step[i].memory->live) memory_free(e->step[i].memory);
}
static int step(struct graph_memory *m, int is_free, size_t *made) {
    note.dev = m->dev;
    if (m->live != is_free) return INVALID_VALUE;
    if (is_free) return memory_free(m), OK;
    *made += m->range->asked;
    return memory_make(m);
}
int graph_launch(struct graph_exec *e, size_t *made) {
    *made = 0;
    if (e->flags & AUTO_FREE_ON_LAUNCH) free_earlier(e);
    for (size_t i = 0; i < e->n; i++) {
        int rc = step(e->step[i].memory, e->step[i].is_free, made);
        if (!rc) continue;
        while (i-- > 0) // all of it or nothing
            if (e->step[i].is_free)
                memory_make(e->step[i].memory);
            else
                memory_free(e->step[i].memory);
        return *made = 0, rc;
    }
    return OK;
}

int graph_trim(int dev) {
    if (dev < 0 || dev >= set.devices) return INVALID_DEVICE;
    note.dev = dev;
    refund(dev, pools[dev].reserved - pools[dev].used);
    pools[dev].reserved = pools[dev].used;
    return OK;
}
void graphs_reset(int dev) {
    struct range *r;
    for (size_t i = 0; (r = range_at(i)); i++)
        if (r->kind == GRAPH && r->dev == dev && r->node->live) memory_free(r->node);
    // An address that no graph has any more is free as well.
    for (size_t i = 0; (r = range_at(i));)
        if (r->kind == GRAPH && !r->node->refs && !r->node->live)
            memory_drop(r->node);
        else
            i++;
    graph_trim(dev);
}
// CUgraphMem_attribute (cuda.h): used, used high, reserved, reserved high. Setting resets a high mark.
int graph_attribute(int dev, int attr, uint64_t *v, int set_it) {
    if (dev < 0 || dev >= set.devices || attr < 0 || attr > 3) return INVALID_VALUE;
    size_t *const at[] = {&pools[dev].used, &pools[dev].used_hi, &pools[dev].reserved, &pools[dev].reserved_hi};
    if (!set_it) return *v = *at[attr], OK;
    if (*v || attr % 2 == 0) return INVALID_VALUE;
    *at[attr] = *at[attr - 1];
    return OK;
}

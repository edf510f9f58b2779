// Graphs: only their memory nodes do something. The ledger has what concerns memory: these nodes, and the launches and
// the end of graphs that have some.
#include "driver.h"

int cuGraphCreate(struct graph **g, unsigned flags) { return (*g = graph_create()) ? OK : OUT_OF_MEMORY; }

// The nodes' parameters in CUgraphNodeParams (cuda.h) follow a type and three reserved words.
enum { MEM_ALLOC = 10, MEM_FREE = 11, PARAMS = 16, ALLOC_SIZE = 104, ALLOC_ADDRESS = 112 };

static dptr address_in(const char *params) { return *(const dptr *)(params + ALLOC_ADDRESS); }
static size_t size_in(const char *params) { return *(const size_t *)(params + ALLOC_SIZE); }

int cuGraphAddMemAllocNode(struct graph_node **n, struct graph *g, const void *deps, size_t ndeps, char *params) {
    return BOOK(alloc_fails() ? OUT_OF_MEMORY : graph_add_alloc(n, g, params), rc_ ? 0 : address_in(params),
                size_in(params));
}
int cuGraphAddMemFreeNode(struct graph_node **n, struct graph *g, const void *deps, size_t ndeps, dptr p) {
    return BOOK_FREE(graph_add_free(n, g, p), p, 0);
}

static int other_node(void **n) { return *n = calloc(1, 64), OK; }
#define ADD_NODE(n, g, params)                                                                                         \
    ({                                                                                                                 \
        char *p_ = (params) + PARAMS;                                                                                  \
        int type_ = *(int *)(params);                                                                                  \
        type_ == MEM_ALLOC ? BOOK(alloc_fails() ? OUT_OF_MEMORY : graph_add_alloc((struct graph_node **)n, g, p_),     \
                                  rc_ ? 0 : address_in(p_), size_in(p_))                                               \
        : type_ == MEM_FREE ? BOOK_FREE(graph_add_free((struct graph_node **)n, g, *(dptr *)p_), *(dptr *)p_, 0)       \
                            : other_node(n);                                                                           \
    })
int cuGraphAddNode(void **n, struct graph *g, const void *deps, size_t ndeps, char *params) {
    return ADD_NODE(n, g, params);
}
int cuGraphAddNode_v2(void **n, struct graph *g, const void *deps, const void *edges, size_t ndeps, char *params) {
    return ADD_NODE(n, g, params);
}
int cuGraphAddNode_v3(void **n, struct graph *g, const void *deps, const void *edges, size_t ndeps, char *params) {
    return ADD_NODE(n, g, params);
}

int cuGraphMemAllocNodeGetParams(const struct graph_node *n, char *params) {
    return LOCKED(graph_node_params(n, params));
}
int cuGraphMemFreeNodeGetParams(const struct graph_node *n, dptr *p) { return LOCKED(graph_node_address(n, p)); }
// Nodes that were not kept count as one, so that a captured graph does not look empty.
int cuGraphGetNodes(struct graph *g, void **nodes, size_t *n) {
    size_t have = graph_nodes(g, nodes, nodes ? *n : 0);
    if (!have && nodes && *n) nodes[0] = g;
    *n = have ? have : 1;
    return OK;
}

static int instantiate(struct graph_exec **e, struct graph *g, uint64_t flags) {
    return (*e = graph_instantiate(g, flags)) ? OK : OUT_OF_MEMORY;
}
int cuGraphInstantiateWithFlags(struct graph_exec **e, struct graph *g, uint64_t flags) {
    return LOCKED(instantiate(e, g, flags));
}
int cuGraphInstantiateWithParams(struct graph_exec **e, struct graph *g, const uint64_t *params) {
    return LOCKED(instantiate(e, g, params[0]));
}
static int launch(struct graph_exec *e, size_t *made) { return alloc_fails() ? OUT_OF_MEMORY : graph_launch(e, made); }
int cuGraphLaunch(struct graph_exec *e, void *stream) {
    size_t made = 0;
    return graph_exec_has_memory(e) ? BOOK(launch(e, &made), e, made) : OK;
}
int cuGraphLaunch_ptsz(struct graph_exec *e, void *stream) {
    size_t made = 0;
    return graph_exec_has_memory(e) ? BOOK(launch(e, &made), e, made) : OK;
}
int cuGraphDestroy(struct graph *g) {
    if (graph_has_memory(g)) return BOOK((graph_destroy(g), OK), g, 0);
    return graph_destroy(g), OK;
}
int cuGraphExecDestroy(struct graph_exec *e) {
    if (graph_exec_has_memory(e)) return BOOK((graph_exec_destroy(e), OK), e, 0);
    return graph_exec_destroy(e), OK;
}

int cuDeviceGraphMemTrim(int dev) { return BOOK(graph_trim(dev), 0, (size_t)dev); }
int cuDeviceGetGraphMemAttribute(int dev, int attr, uint64_t *v) { return LOCKED(graph_attribute(dev, attr, v, 0)); }
int cuDeviceSetGraphMemAttribute(int dev, int attr, uint64_t *v) { return LOCKED(graph_attribute(dev, attr, v, 1)); }

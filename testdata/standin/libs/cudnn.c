// Sizes that PyTorch allocates on behalf of cuDNN, and enough of the backend API for cudnn_frontend to find one engine.
#include "../standin.h"

static size_t workspace(void) { return env_size("STANDIN_CUDNN_WORKSPACE", 4ull << 20); }

size_t cudnnGetVersion(void) { return env_size("STANDIN_CUDNN_VERSION", 92600); }
size_t cudnnGetCudartVersion(void) { return 13020; }
void cudnnGetLastErrorString(char *s, size_t n) {
    if (n) s[0] = 0;
}
int cudnnGetProperty(int type, int *v) { return *v = type == 0 ? 9 : type == 1 ? 26 : 0, 0; }
int cudnnGetStream(void *h, void **stream) { return *stream = NULL, 0; }

// cudnnBackendAttributeName_t (cudnn_graph.h)
enum {
    ENGINEHEUR_RESULTS = 202,
    ENGINECFG_ENGINE = 300,
    ENGINECFG_WORKSPACE = 303,
    PLAN_ENGINE_CONFIG = 401,
    PLAN_WORKSPACE = 402,
    GRAPH_ENGINE_COUNT = 802,
    ENGINE_INDEX = 1301,
};
int cudnnBackendCreateDescriptor(int type, void **d) { return *d = calloc(1, 64), 0; }
int cudnnBackendDestroyDescriptor(void *d) { return free(d), 0; }
static int one(int64_t *count, int64_t *out, int64_t value) {
    if (count) *count = 1;
    if (out) *out = value;
    return 0;
}
int cudnnBackendGetAttribute(void *d, int name, int type, int64_t want, int64_t *count, int64_t *out) {
    switch (name) {
    case ENGINEHEUR_RESULTS:
    case ENGINECFG_ENGINE:
    case PLAN_ENGINE_CONFIG:
        return one(count, NULL, 0);
    case ENGINECFG_WORKSPACE:
    case PLAN_WORKSPACE:
        return one(count, out, (int64_t)workspace());
    case GRAPH_ENGINE_COUNT:
        return one(count, out, 1);
    case ENGINE_INDEX:
        return one(count, out, 0);
    default:
        return count ? *count = 0 : 0, 0;
    }
}

int cudnnDropoutGetStatesSize(void *h, size_t *n) { return *n = 1 << 20, 0; }
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *h, int mode, int ops, void *act, void *x, size_t *n) {
    return *n = 0, 0;
}
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *h, int mode, int ops, void *x, void *z, void *y,
                                                             void *bn, void *act, size_t *n) {
    return *n = 0, 0;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *h, int mode, int ops, void *x, void *y, void *dy, void *dz,
                                                      void *dx, void *dbn, void *act, size_t *n) {
    return *n = 0, 0;
}
int cudnnGetRNNWeightSpaceSize(void *h, void *rnn, size_t *n) { return *n = 1 << 20, 0; }
int cudnnGetRNNTempSpaceSizes(void *h, void *rnn, int mode, void *x, size_t *work, size_t *reserve) {
    return *work = workspace(), *reserve = 1 << 20, 0;
}
int cudnnGetConvolutionForwardWorkspaceSize(void *h, void *x, void *w, void *c, void *y, int algo, size_t *n) {
    return *n = workspace(), 0;
}
int cudnnGetConvolutionBackwardDataWorkspaceSize(void *h, void *w, void *dy, void *c, void *dx, int algo, size_t *n) {
    return *n = workspace(), 0;
}
int cudnnGetConvolutionBackwardFilterWorkspaceSize(void *h, void *x, void *dy, void *c, void *dw, int algo, size_t *n) {
    return *n = workspace(), 0;
}

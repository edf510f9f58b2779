// One heuristic result for every matrix product, without a workspace.
#include "../standin.h"

enum { RESULT = 96 }; // cublasLtMatmulHeuristicResult_t: algo[64], workspaceSize, state, wavesCount, reserved[4]

size_t cublasLtGetVersion(void) { return 130401; }
int cublasLtMatmulAlgoGetHeuristic(void *h, void *op, void *a, void *b, void *c, void *d, void *preference, int want,
                                   char *results, int *got) {
    memset(results, 0, RESULT);
    return *got = want > 0, 0;
}
int cublasLtMatmulAlgoCheck(void *h, void *op, void *a, void *b, void *c, void *d, void *algo, char *result) {
    return memset(result, 0, RESULT), 0;
}

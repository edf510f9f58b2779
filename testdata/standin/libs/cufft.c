// The plan's workspace, which PyTorch allocates.
#include "../standin.h"

int cufftXtMakePlanMany(int plan, int rank, void *n, void *inembed, long istride, long idist, int itype, void *onembed,
                        long ostride, long odist, int otype, long batch, size_t *workspace, int etype) {
    return *workspace = 1 << 20, 0;
}

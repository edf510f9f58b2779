// Inside libcuda.so.1: thin functions of CUDA's driver API (cuda.h) over the core. Ledger lines have their names.
#pragma once
#include "../core/core.h"

/* SPDX-License-Identifier: Apache-2.0 */
// clang-format off
//go:build linux && cgo
// clang-format on

// The NVML functions that go-nvml's C code refers to. Without definitions here the program would refer to the library
// itself, and the dynamic linker would end it when a function is missing: at its start where programs are linked with
// -z now (Ubuntu's default; the opposite, -z lazy, is no flag that cgo accepts of a package), else at the first call of
// a function that the driver's library is too old to have.
//
// Those that are called (functions.h) have their own prototypes and are looked up once, when the library is loaded. The
// others (symbols.h), some 370, have one definition in common that finds nothing. It is there for the linker: nothing
// calls it.
#include "functions.h"
#include "library.h"
#include <dlfcn.h>
#include <stddef.h>

#define HIDDEN __attribute__((visibility("hidden"))) // the library's own calls must not end up here

#define NVML_DEFINE(name, parameters, arguments)                                                                       \
    HIDDEN nvmlReturn_t name parameters;                                                                               \
    static __typeof__(name) *found_##name;                                                                             \
    nvmlReturn_t name parameters { return found_##name ? found_##name arguments : NVML_ERROR_FUNCTION_NOT_FOUND; }
NVML_FUNCTIONS(NVML_DEFINE)

HIDDEN const char *nvmlErrorString(nvmlReturn_t result);
static __typeof__(nvmlErrorString) *found_nvmlErrorString;
const char *nvmlErrorString(nvmlReturn_t result) {
    return found_nvmlErrorString ? found_nvmlErrorString(result) : "no text";
}

// look_up finds the functions in a library, or none in NULL.
static void look_up(void *library) {
#define NVML_FIND(name, parameters, arguments)                                                                         \
    found_##name = library ? (__typeof__(name) *)dlsym(library, #name) : NULL;
    NVML_FUNCTIONS(NVML_FIND)
    NVML_FIND(nvmlErrorString, , )
}

static int opened;

void *open_library(const char *path) {
    void *library = dlopen(path, RTLD_LAZY);
    if (!library) return NULL;
    opened++;
    look_up(library);
    return library;
}

void close_library(void *library) {
    if (--opened == 0) look_up(NULL);
    dlclose(library);
}

static nvmlReturn_t not_called(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

#define NVML(name) HIDDEN extern __typeof__(not_called) name __attribute__((alias("not_called")));
#include "symbols.h"

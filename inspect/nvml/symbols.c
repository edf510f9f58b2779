// clang-format off
//go:build linux && cgo
// clang-format on

// Every NVML function that go-nvml calls, found by name at each call. Without these definitions the program would refer
// to them itself, and the dynamic linker would end it when one is missing: at its start where programs are linked with
// -z now (Ubuntu's default), else at the first call of a function that the driver's library is too old to have.
#include "choose.h"
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

enum { FUNCTION_NOT_FOUND = 13 }; // NVML_ERROR_FUNCTION_NOT_FOUND

static char library[4096];

void choose_library(const char *path) { snprintf(library, sizeof library, "%s", path); }

// find looks in the library that go-nvml has loaded. It stays loaded: go-nvml holds it too.
static void *find(const char *name) {
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return NULL;
    void *found = dlsym(handle, name);
    dlclose(handle);
    return found;
}

// The functions take up to six integers and pointers, which travel in registers on x86-64 and arm64, and return an
// integer.
typedef long function(long, long, long, long, long, long);

#define HIDDEN __attribute__((visibility("hidden"))) // the library's own calls must not end up here
#define NVML(name)                                                                                                     \
    HIDDEN long name(long a, long b, long c, long d, long e, long f) {                                                 \
        function *found = (function *)find(#name);                                                                     \
        return found ? found(a, b, c, d, e, f) : FUNCTION_NOT_FOUND;                                                   \
    }
#include "symbols.h"

HIDDEN const char *nvmlErrorString(int rc) {
    const char *(*found)(int) = (const char *(*)(int))find("nvmlErrorString");
    return found ? found(rc) : "no text";
}

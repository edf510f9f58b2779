// embeds DIR: loads CUDA's driver, and Python only on request. A file DIR/python.N has "global" or "local" on its first
// line, the path of a libpython on the second, and then a script. For each such file, from 0 on, the program loads the
// library, starts its interpreter unless that runs, and runs the script, in which take() allocates 1 MiB of device
// memory that is never freed.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *driver;

static void *must(void *p, const char *what) {
    if (!p) {
        fprintf(stderr, "embeds: %s: %s\n", what, dlerror());
        _exit(1);
    }
    return p;
}

#define FUNCTION(type, lib, name, ...) ((type(*)(__VA_ARGS__))must(dlsym(lib, name), name))

// PyMethodDef of methodobject.h, the same since Python 2.
struct method {
    const char *name;
    void *(*call)(void *, void *);
    int flags;
    const char *doc;
};
enum { NO_ARGUMENTS = 4 };

static void *(*new_int)(long);

static void *take(void *self, void *arguments) {
    void *context, *block;
    FUNCTION(int, driver, "cuInit", unsigned)(0);
    FUNCTION(int, driver, "cuDevicePrimaryCtxRetain", void **, int)(&context, 0);
    FUNCTION(int, driver, "cuCtxSetCurrent", void *)(context);
    return new_int(FUNCTION(int, driver, "cuMemAlloc_v2", void **, size_t)(&block, 1 << 20));
}

static void run(char *text) {
    static struct method method = {"take", take, NO_ARGUMENTS, NULL};
    char *path = strchr(text, '\n') + 1, *script = strchr(path, '\n') + 1;
    int scope = *text == 'g' ? RTLD_GLOBAL : RTLD_LOCAL | RTLD_DEEPBIND;
    void *lib;

    script[-1] = 0;
    lib = must(dlopen(path, RTLD_NOW | scope), path);
    if (!FUNCTION(int, lib, "Py_IsInitialized", void)()) FUNCTION(void, lib, "Py_InitializeEx", int)(0);
    new_int = FUNCTION(void *, lib, "PyLong_FromLong", long);
    void *function = FUNCTION(void *, lib, "PyCFunction_NewEx", struct method *, void *, void *)(&method, NULL, NULL);
    void *module = FUNCTION(void *, lib, "PyImport_AddModule", const char *)("__main__");
    FUNCTION(int, lib, "PyObject_SetAttrString", void *, const char *, void *)(module, "take", function);
    if (FUNCTION(int, lib, "PyRun_SimpleString", const char *)(script)) _exit(1);
}

int main(int argc, char **argv) {
    static char text[1 << 16], path[4096];

    if (argc != 2) return 2;
    driver = must(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), "libcuda.so.1");
    printf("READY %d\n", getpid());
    fflush(stdout);
    for (int n = 0;; n++) {
        FILE *f;
        snprintf(path, sizeof(path), "%s/python.%d", argv[1], n);
        while (!(f = fopen(path, "r")))
            usleep(5000);
        text[fread(text, 1, sizeof(text) - 1, f)] = 0;
        fclose(f);
        run(text);
        printf("RAN %d\n", n);
        fflush(stdout);
    }
}

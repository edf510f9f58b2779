/* dyld for tests, as a library that Linux preloads: it inserts the libraries of DYLD_INSERT_LIBRARIES, and has what they import of
 * macOS's libraries on Linux. */
#define _GNU_SOURCE
#include "macho.h"
#include "metal.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct macho *inserted;

/* Flags have other numbers there. */
static int mac_open(const char *path, int flags, int mode)
{
	int f = flags & 3;
	f |= flags & 0x200 ? O_CREAT : 0;
	f |= flags & 0x800 ? O_EXCL : 0;
	f |= flags & 0x1000000 ? O_CLOEXEC : 0;
	return open(path, f, mode);
}

static void *mac_dlsym(void *handle, const char *name)
{
	return dlsym(handle == (void *)-2 ? RTLD_DEFAULT : handle, name);
}

static void *mac_dlopen(const char *path, int mode)
{
	return dlopen(path, RTLD_LAZY | (mode & 0x10 ? RTLD_NOLOAD : 0));
}

static uint64_t mac_clock(int clock)
{
	struct timespec t;
	(void)clock;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int mac_key_create(unsigned long *key, void (*end)(void *))
{
	pthread_key_t k;
	int failed = pthread_key_create(&k, end);
	*key = k;
	return failed;
}

static void *mac_getspecific(unsigned long key)
{
	return pthread_getspecific((pthread_key_t)key);
}

static int mac_setspecific(unsigned long key, const void *value)
{
	return pthread_setspecific((pthread_key_t)key, value);
}

static int mac_threadid(void *thread, uint64_t *id)
{
	(void)thread;
	*id = gettid();
	return 0;
}

static size_t stack_of(pthread_t thread, void **low)
{
	pthread_attr_t a;
	size_t bytes = 0;
	pthread_getattr_np(thread, &a);
	pthread_attr_getstack(&a, low, &bytes);
	pthread_attr_destroy(&a);
	return bytes;
}

static void *mac_stackaddr(pthread_t thread)
{
	void *low;
	size_t bytes = stack_of(thread, &low);
	return (char *)low + bytes;
}

static size_t mac_stacksize(pthread_t thread)
{
	void *low;
	return stack_of(thread, &low);
}

static char images[1024][512];
static uint32_t image_count;

static int take_image(struct dl_phdr_info *info, size_t size, void *n)
{
	uint32_t *at = n;
	(void)size;
	if (*at < sizeof images / sizeof *images)
		snprintf(images[(*at)++], sizeof *images, "%s", info->dlpi_name);
	return 0;
}

static uint32_t mac_image_count(void)
{
	uint32_t n = 0;
	dl_iterate_phdr(take_image, &n);
	return image_count = n;
}

static const char *mac_image_name(uint32_t i)
{
	return i < image_count ? images[i] : NULL;
}

static const struct {
	const char *name;
	void *value;
} imports[] = {
	{ "dyld_stub_binder", (void *)abort },
	{ "__dyld_get_image_name", (void *)mac_image_name },
	{ "__dyld_image_count", (void *)mac_image_count },
	{ "_clock_gettime_nsec_np", (void *)mac_clock },
	{ "_close", (void *)close },
	{ "_dladdr", (void *)dladdr },
	{ "_dlopen", (void *)mac_dlopen },
	{ "_dlsym", (void *)mac_dlsym },
	{ "_ftruncate", (void *)ftruncate },
	{ "_getenv", (void *)getenv },
	{ "_getpid", (void *)getpid },
	{ "_memcpy", (void *)memcpy },
	{ "_memset", (void *)memset },
	{ "_mmap", (void *)mmap },
	{ "_open", (void *)mac_open },
	{ "_pthread_get_stackaddr_np", (void *)mac_stackaddr },
	{ "_pthread_get_stacksize_np", (void *)mac_stacksize },
	{ "_pthread_getspecific", (void *)mac_getspecific },
	{ "_pthread_key_create", (void *)mac_key_create },
	{ "_pthread_self", (void *)pthread_self },
	{ "_pthread_setspecific", (void *)mac_setspecific },
	{ "_pthread_threadid_np", (void *)mac_threadid },
	{ "_sched_yield", (void *)sched_yield },
	{ "_write", (void *)write },
	{ "_class_getInstanceMethod", (void *)class_getInstanceMethod },
	{ "_class_getMethodImplementation", (void *)class_getMethodImplementation },
	{ "_class_getName", (void *)class_getName },
	{ "_class_replaceMethod", (void *)class_replaceMethod },
	{ "_method_getTypeEncoding", (void *)method_getTypeEncoding },
	{ "_object_getClass", (void *)object_getClass },
	{ "_sel_registerName", (void *)sel_registerName },
	{ "_MTLCopyAllDevices", (void *)real_copy_all_devices },
	{ "_MTLCreateSystemDefaultDevice", (void *)real_create_default_device },
};

static void *resolve(const char *name)
{
	for (unsigned i = 0; i < sizeof imports / sizeof *imports; i++)
		if (!strcmp(imports[i].name, name))
			return imports[i].value;
	return NULL;
}

/* take_replaced does what dyld does to all other images. */
static void take_replaced(void *replacement, void *original)
{
	if (original == (void *)real_copy_all_devices)
		copy_all_devices = (id(*)(void))replacement;
	else if (original == (void *)real_create_default_device)
		create_default_device = (id(*)(void))replacement;
	else
		abort();
}

__attribute__((constructor(102))) static void insert(void)
{
	const char *path = getenv("DYLD_INSERT_LIBRARIES");
	if (path && *path)
		inserted = macho_load(path, resolve, take_replaced);
}

/* not_replaced: what is loaded later than the program replaces no function of others (dyld, buildInterposingTables). */
static void not_replaced(void *replacement, void *original)
{
	(void)replacement;
	(void)original;
}

static void *next(const char *name)
{
	return dlvsym(RTLD_NEXT, name, "GLIBC_2.34");
}

/* dlopen and dlsym take the library in a process that runs already, as they do on macOS. */
void *dlopen(const char *path, int mode)
{
	size_t n = path ? strlen(path) : 0, end = strlen("/libgputrace.dylib");
	if (n < end || strcmp(path + n - end, "/libgputrace.dylib") != 0)
		return ((void *(*)(const char *, int))next("dlopen"))(path, mode);
	if (!inserted)
		inserted = macho_load(path, resolve, not_replaced);
	return inserted;
}

void *dlsym(void *handle, const char *name)
{
	char symbol[128];
	if (!inserted || handle != inserted)
		return ((void *(*)(void *, const char *))next("dlsym"))(handle, name);
	snprintf(symbol, sizeof symbol, "_%s", name);
	return macho_symbol(inserted, symbol);
}

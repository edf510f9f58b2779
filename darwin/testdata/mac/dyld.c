/* dyld for tests, as a library that Linux preloads: it inserts the libraries of DYLD_INSERT_LIBRARIES, and has what they import of
 * macOS's libraries on Linux. */
#define _GNU_SOURCE
#include "macho.h"
#include "malloc.h"
#include "metal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
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

/* A Mach-O header for each image of ELF, with its segments (mach-o/loader.h). */
struct mac_segment {
	uint32_t command, bytes;
	char name[16];
	uint64_t address, size, offset, file_size;
	uint32_t max_protection, protection, sections, flags;
};

static struct mac_header {
	uint32_t magic, cpu, subtype, type, commands, command_bytes, flags, reserved;
	struct mac_segment segments[8];
} headers[1024];
static uint64_t slides[1024];

static int take_header(struct dl_phdr_info *info, size_t size, void *n)
{
	uint32_t *at = n;
	struct mac_header *h = &headers[*at];
	(void)size;
	if (*at == sizeof images / sizeof *images)
		return 0;
	slides[(*at)++] = info->dlpi_addr;
	h->commands = 0;
	for (int i = 0; i < info->dlpi_phnum && h->commands < 8; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		struct mac_segment *s = &h->segments[h->commands];
		if (p->p_type != PT_LOAD)
			continue;
		*s = (struct mac_segment){ .command = 0x19,
					   .bytes = sizeof *s,
					   .address = p->p_vaddr,
					   .size = p->p_memsz };
		/* as in dyld's cache of macOS, where no segment is aligned to a page */
		s->protection = (p->p_flags & PF_R ? 1 : 0) | (p->p_flags & PF_W ? 2 : 0) |
				(p->p_flags & PF_X ? 4 : 0);
		h->commands++;
	}
	h->magic = 0xfeedfacf;
	h->command_bytes = h->commands * sizeof *h->segments;
	return 0;
}

static const void *mac_image_header(uint32_t i)
{
	uint32_t n = 0;
	if (i == 0)
		dl_iterate_phdr(take_header, &n);
	return i < image_count ? &headers[i] : NULL;
}

static intptr_t mac_image_slide(uint32_t i)
{
	return (intptr_t)slides[i];
}

/* The kernel's memory calls, of this process only. What is not there is refused as a whole. */
static uint32_t mac_task_self = 1;

static int mac_vm_read_overwrite(uint32_t task, uint64_t address, uint64_t size, uint64_t to,
				 uint64_t *got)
{
	struct iovec local = { (void *)to, size }, remote = { (void *)address, size };
	ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
	if (task != mac_task_self || n != (ssize_t)size)
		return 1; /* KERN_INVALID_ADDRESS */
	*got = size;
	return 0;
}

struct mac_region {
	uint64_t start, end;
	int protection, shared, stack, file;
};

static struct mac_region regions[8192];
static int region_count;

static void take_regions(void)
{
	char line[4608], flags[8];
	FILE *f = fopen("/proc/self/maps", "re");
	region_count = 0;
	while (f && region_count < 8192 && fgets(line, sizeof line, f)) {
		struct mac_region *r = &regions[region_count];
		if (sscanf(line, "%lx-%lx %7s", &r->start, &r->end, flags) != 3)
			continue;
		r->protection = (flags[0] == 'r' ? 1 : 0) | (flags[1] == 'w' ? 2 : 0) |
				(flags[2] == 'x' ? 4 : 0);
		r->shared = flags[3] == 's';
		r->file = strchr(line, '/') != NULL;
		r->stack = strstr(line, "[stack") != NULL;
		region_count++;
	}
	if (f)
		fclose(f);
}

static int mac_vm_region_recurse(uint32_t task, uint64_t *address, uint64_t *size, uint32_t *depth,
				 uint32_t *info, uint32_t *words)
{
	if (*address == 0)
		take_regions();
	if (task != mac_task_self || *depth != 0 || *words < 17)
		return 4; /* KERN_INVALID_ARGUMENT */
	for (int i = 0; i < region_count; i++) {
		struct mac_region *r = &regions[i];
		if (r->end <= *address)
			continue;
		*address = r->start;
		*size = r->end - r->start;
		info[0] = (uint32_t)r->protection;
		info[5] = r->stack ? 30 : 0; /* VM_MEMORY_STACK */
		((uint8_t *)info)[46] = (uint8_t)r->file;
		((uint8_t *)info)[47] = r->shared ? 4 : 2; /* SM_SHARED, SM_PRIVATE */
		info[12] = 0;
		return 0;
	}
	return 1;
}

static __thread sigset_t kept; /* has more than a word */

static int mac_sigmask(int how, const uint32_t *set, uint32_t *before)
{
	sigset_t all, old;
	sigfillset(&all);
	if (how != 3 || (*set != ~0u && *set != 0))
		abort(); /* what the shim does not do */
	pthread_sigmask(SIG_SETMASK, *set ? &all : &kept, &old);
	if (before) {
		kept = old;
		*before = 0;
	}
	return 0;
}

static const struct {
	const char *name;
	void *value;
} imports[] = {
	{ "dyld_stub_binder", (void *)abort },
	{ "__dyld_get_image_header", (void *)mac_image_header },
	{ "__dyld_get_image_name", (void *)mac_image_name },
	{ "__dyld_get_image_vmaddr_slide", (void *)mac_image_slide },
	{ "__dyld_image_count", (void *)mac_image_count },
	{ "___error", (void *)__errno_location },
	{ "_clock_gettime_nsec_np", (void *)mac_clock },
	{ "_close", (void *)close },
	{ "_dladdr", (void *)dladdr },
	{ "_dlopen", (void *)mac_dlopen },
	{ "_dlsym", (void *)mac_dlsym },
	{ "_ftruncate", (void *)ftruncate },
	{ "_getenv", (void *)getenv },
	{ "_getpagesize", (void *)getpagesize },
	{ "_getpid", (void *)getpid },
	{ "_malloc_good_size", (void *)mac_malloc_good_size },
	{ "_malloc_size", (void *)mac_malloc_size },
	{ "_mach_task_self_", (void *)&mac_task_self },
	{ "_mach_vm_read_overwrite", (void *)mac_vm_read_overwrite },
	{ "_mach_vm_region_recurse", (void *)mac_vm_region_recurse },
	{ "_kill", (void *)kill },
	{ "_memcpy", (void *)memcpy },
	{ "_memset", (void *)memset },
	{ "_mincore", (void *)mincore },
	{ "_mmap", (void *)mmap },
	{ "_open", (void *)mac_open },
	{ "_pthread_create", (void *)pthread_create },
	{ "_pthread_detach", (void *)pthread_detach },
	{ "_pthread_get_stackaddr_np", (void *)mac_stackaddr },
	{ "_pthread_get_stacksize_np", (void *)mac_stacksize },
	{ "_pthread_getspecific", (void *)mac_getspecific },
	{ "_pthread_key_create", (void *)mac_key_create },
	{ "_pthread_self", (void *)pthread_self },
	{ "_pthread_setspecific", (void *)mac_setspecific },
	{ "_pthread_sigmask", (void *)mac_sigmask },
	{ "_pthread_threadid_np", (void *)mac_threadid },
	{ "_sched_yield", (void *)sched_yield },
	{ "_usleep", (void *)usleep },
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

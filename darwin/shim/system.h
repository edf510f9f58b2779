/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim takes from macOS, written by hand: there is no SDK here. sdk/ names the same functions for the linker, and nothing else
 * can be linked. Prototypes are exact: on arm64 macOS a call without one would put its arguments elsewhere. */
#pragma once
#include <stdint.h>
#include <stddef.h>

/* libSystem: open(2), mmap(2), pthread(3), dlfcn.h, time.h of macOS 12. */
int open(const char *path, int flags, ...);
int close(int fd);
int ftruncate(int fd, int64_t length);
long write(int fd, const void *from, size_t bytes);
void *mmap(void *at, size_t length, int protection, int flags, int fd, int64_t offset);
char *getenv(const char *name);
int getpid(void);
int kill(int pid, int signal);
int *__error(void);
int sched_yield(void);
int usleep(uint32_t microseconds);
int getpagesize(void);
int mincore(const void *at, size_t length, char *pages);
uint64_t clock_gettime_nsec_np(int clock);

#define O_RDWR	   0x2
#define O_CREAT	   0x200
#define O_EXCL	   0x800
#define O_CLOEXEC  0x1000000
#define PROT_READ  1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_FAILED ((void *)-1)

#define MINCORE_INCORE	  0x1
#define MINCORE_PAGED_OUT 0x20

#define ESRCH 3

#define CLOCK_MONOTONIC_RAW 4 /* goes on while the machine sleeps */

struct dl_info {
	const char *path;
	void *base;
	const char *symbol;
	void *start;
};
void *dlopen(const char *path, int mode);
void *dlsym(void *handle, const char *symbol);
int dladdr(const void *pc, struct dl_info *info);
uint32_t _dyld_image_count(void);
const char *_dyld_get_image_name(uint32_t image);
const void *_dyld_get_image_header(uint32_t image);
intptr_t _dyld_get_image_vmaddr_slide(uint32_t image);

#define RTLD_LAZY    0x1
#define RTLD_NOLOAD  0x10
#define RTLD_DEFAULT ((void *)-2)

typedef unsigned long pthread_key_t;
typedef void *pthread_t;
int pthread_key_create(pthread_key_t *key, void (*end)(void *));
void *pthread_getspecific(pthread_key_t key);
int pthread_setspecific(pthread_key_t key, const void *value);
pthread_t pthread_self(void);
int pthread_threadid_np(pthread_t thread, uint64_t *id);
void *pthread_get_stackaddr_np(pthread_t thread); /* the highest address */
size_t pthread_get_stacksize_np(pthread_t thread);
int pthread_create(pthread_t *thread, const void *attributes, void *(*run)(void *), void *argument);
int pthread_detach(pthread_t thread);
int pthread_sigmask(int how, const uint32_t *set, uint32_t *before);

#define SIG_SETMASK 3

/* libSystem: malloc/malloc.h. malloc_size returns 0 for an address that is not the start of a block of malloc's. malloc_good_size returns
 * the size of the block that malloc returns for a request. */
size_t malloc_size(const void *memory);
size_t malloc_good_size(size_t request);

/* libSystem: mach/mach_vm.h, mach/vm_region.h. What cannot be read is an error, also in our own memory. */
extern uint32_t mach_task_self_;
int mach_vm_read_overwrite(uint32_t task, uint64_t address, uint64_t size, uint64_t to,
			   uint64_t *got);
struct region_info { /* vm_region_submap_info_64 */
	int32_t protection, max_protection;
	uint32_t inheritance, offset[2], tag, pages[5];
	uint16_t shadow_depth;
	uint8_t external_pager, share_mode;
	int32_t submap, behavior;
	uint32_t object, wired, reusable, object_full[2];
};
int mach_vm_region_recurse(uint32_t task, uint64_t *address, uint64_t *size, uint32_t *depth,
			   struct region_info *info, uint32_t *words);

/* libobjc: objc/runtime.h */
typedef struct objc_object *id;
typedef struct objc_class *Class;
typedef struct objc_selector *SEL;
typedef struct objc_method *Method;
typedef void (*IMP)(void);
Class object_getClass(id object);
SEL sel_registerName(const char *name);
Method class_getInstanceMethod(Class class, SEL name);
IMP class_getMethodImplementation(Class class, SEL name);
IMP class_replaceMethod(Class class, SEL name, IMP implementation, const char *types);
const char *method_getTypeEncoding(Method method);
const char *class_getName(Class class);

/* Metal: MTLDevice.h. They are linked weakly, so that the shim loads where there is no Metal. */
id MTLCopyAllDevices(void) __attribute__((weak_import));
id MTLCreateSystemDefaultDevice(void) __attribute__((weak_import));

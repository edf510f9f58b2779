/* An Objective-C runtime for tests: classes with a table of methods each, one parent, and messages by a lookup. The names are those of
 * objc/runtime.h. */
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct objc_class *Class;
typedef struct objc_object {
	Class isa;
	uint64_t references;
} *id;
typedef const char *SEL;
typedef void (*IMP)(void);
typedef struct objc_method {
	SEL name;
	IMP implementation;
	const char *types;
} *Method;

#define MAX_METHODS 64

struct objc_class {
	const char *name;
	Class parent;
	unsigned count;
	struct objc_method methods[MAX_METHODS];
};

SEL sel_registerName(const char *name);
Class object_getClass(id object);
const char *class_getName(Class class_);
Method class_getInstanceMethod(Class class_, SEL name);
IMP class_getMethodImplementation(Class class_, SEL name);
IMP class_replaceMethod(Class class_, SEL name, IMP implementation, const char *types);
const char *method_getTypeEncoding(Method method);

/* objc_add gives a class a method when it is made. */
void objc_add(Class class_, const char *name, IMP implementation);

/* objc_send sends a message with up to four words, as code of a program does. objc_super sends it as a method of a class does that
 * calls its parent's. */
uint64_t objc_send(id object, const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
uint64_t objc_super(id object, Class of, const char *name);

/* objc_new makes an object of so many bytes with one reference. */
void *objc_new(Class class_, uint64_t bytes);
id objc_retain(id object);
void objc_release(id object);

#ifdef __cplusplus
}
#endif

#include "objc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *names[256];
static unsigned name_count;

SEL sel_registerName(const char *name)
{
	SEL found = NULL;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < name_count && !found; i++)
		if (!strcmp(names[i], name))
			found = names[i];
	if (!found)
		found = names[name_count++] = strdup(name);
	pthread_mutex_unlock(&lock);
	return found;
}

Class object_getClass(id object)
{
	return object ? object->isa : NULL;
}

const char *class_getName(Class class_)
{
	return class_->name;
}

static Method own_method(Class class_, SEL name)
{
	for (unsigned i = 0; i < class_->count; i++)
		if (class_->methods[i].name == name)
			return &class_->methods[i];
	return NULL;
}

Method class_getInstanceMethod(Class class_, SEL name)
{
	Method m = NULL;
	for (; class_ && !m; class_ = class_->parent)
		m = own_method(class_, name);
	return m;
}

/* forward is what Apple's runtime returns for a method that is not there: to call it ends the process. */
static void forward(void)
{
	fprintf(stderr, "objc: unrecognized selector\n");
	abort();
}

IMP class_getMethodImplementation(Class class_, SEL name)
{
	Method m = class_getInstanceMethod(class_, name);
	return m ? m->implementation : forward;
}

IMP class_replaceMethod(Class class_, SEL name, IMP implementation, const char *types)
{
	Method m = own_method(class_, name);
	IMP old = NULL;
	if (m) {
		old = m->implementation;
		m->implementation = implementation;
		return old;
	}
	if (class_->count == MAX_METHODS)
		abort();
	class_->methods[class_->count] = (struct objc_method){ name, implementation, types };
	__atomic_store_n(&class_->count, class_->count + 1, __ATOMIC_RELEASE);
	return NULL;
}

const char *method_getTypeEncoding(Method method)
{
	return method->types;
}

void objc_add(Class class_, const char *name, IMP implementation)
{
	class_replaceMethod(class_, sel_registerName(name), implementation, "");
}

typedef uint64_t (*message)(id, SEL, uint64_t, uint64_t, uint64_t, uint64_t);

uint64_t objc_send(id object, const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	SEL selector = sel_registerName(name);
	return ((message)class_getMethodImplementation(object->isa, selector))(object, selector, a,
									       b, c, d);
}

uint64_t objc_super(id object, Class of, const char *name)
{
	SEL selector = sel_registerName(name);
	return ((message)class_getMethodImplementation(of->parent, selector))(object, selector, 0,
									      0, 0, 0);
}

void *objc_new(Class class_, uint64_t bytes)
{
	id object = calloc(1, bytes);
	object->isa = class_;
	object->references = 1;
	return object;
}

id objc_retain(id object)
{
	__atomic_fetch_add(&object->references, 1, __ATOMIC_RELAXED);
	return object;
}

void objc_release(id object)
{
	if (__atomic_sub_fetch(&object->references, 1, __ATOMIC_ACQ_REL) == 0)
		objc_send(object, "dealloc", 0, 0, 0, 0);
}

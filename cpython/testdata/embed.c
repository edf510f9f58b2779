/*
 * A program with an interpreter inside, in ways that extension modules and host programs have.
 *
 * argv[1]: pthread keys made before the interpreter's own
 * argv[2]: 1: keep every thread state under a second key as well, as pybind11 does
 */
#include <Python.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_key_t copy;
static int keep_copy;
static pthread_barrier_t inside;

/* A thread that was not made by Python and has released the GIL again. */
static void *foreign(void *arg)
{
	PyGILState_STATE gil = PyGILState_Ensure();

	if (keep_copy)
		pthread_setspecific(copy, PyGILState_GetThisThreadState());
	Py_BEGIN_ALLOW_THREADS
	pthread_barrier_wait(&inside);
	pthread_barrier_wait(&inside);
	Py_END_ALLOW_THREADS
	PyGILState_Release(gil);
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t threads[3];
	pthread_key_t key;
	int i;

	if (argc < 3)
		return 2;
	for (i = 0; i < atoi(argv[1]); i++)
		pthread_key_create(&key, NULL);
	keep_copy = atoi(argv[2]);
	Py_InitializeEx(0);
	pthread_key_create(&copy, NULL);
	if (keep_copy)
		pthread_setspecific(copy, PyThreadState_Get());
	pthread_barrier_init(&inside, NULL, 4);
	for (i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, foreign, NULL);
	Py_BEGIN_ALLOW_THREADS
	pthread_barrier_wait(&inside);
	Py_END_ALLOW_THREADS
	PyRun_SimpleString("import sys\nprint('ready', flush=True)\nsys.stdin.read()\n");
	return 0;
}
